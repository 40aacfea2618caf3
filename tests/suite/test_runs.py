"""Suite runs: what is recorded, what a run that is taken up again does, and what the table says."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.suite import job, pool, record, table
from pipeline.suite.job import Settings, overrides_of
from pipeline.suite.record import Job, Record
from scripts import suite as script

PASSED = Record("resnet18", "fp32", "passed", graphs=1, error_ratio=1.25, fused=3, library=21, arena_bytes=2048)
FAILED = Record("gpt2", "fp32", "failed", stage="validate", reason="output | differs", graphs=1)


# ---- records -------------------------------------------------------------------------------


def test_the_last_record_of_a_job_counts_and_a_torn_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    assert record.read(path) == {}
    record.append(path, FAILED)
    record.append(path, PASSED)
    mended = Record(
        "gpt2", "fp32", "passed", graphs=2, breaks=("a.py:3: x",), peer_breaks=(), latency_ms={"eager": 1.5}
    )
    record.append(path, mended)
    with path.open("a") as file:
        file.write('{"name": "vgg16", "prec')  # killed while it wrote
    assert record.read(path) == {Job("resnet18", "fp32"): PASSED, Job("gpt2", "fp32"): mended}


def test_what_is_left_to_do() -> None:
    jobs = [Job("resnet18", "fp32"), Job("gpt2", "fp32"), Job("vgg16", "fp32")]
    done = {one.job: one for one in (PASSED, FAILED)}
    assert record.left(jobs, done, again=False) == jobs[2:]
    assert record.left(jobs, done, again=True) == jobs[1:]


@pytest.mark.parametrize(
    ("values", "captured"),
    [
        ({"graphs": 1}, True),
        ({"graphs": 0}, False),
        ({}, False),
        ({"graphs": 2, "breaks": ("a.py:3: x.item()",)}, False),
        ({"graphs": 2, "breaks": ("a.py:3: x.item()",), "peer_breaks": ()}, False),
        ({"graphs": 2, "breaks": ("a.py:3: x.item()",), "peer_breaks": ("a.py:3", "b.py:1")}, True),
        ({"graphs": 2, "breaks": ("a.py:30: x.item()",), "peer_breaks": ("a.py:3",)}, False),
        ({"graphs": 2, "eager_parts": ("a.py:3: if x:",), "peer_breaks": ("a.py:3",)}, True),
        ({"graphs": 1, "eager_parts": ("a.py:3: if x:",), "peer_breaks": ()}, False),
    ],
)
def test_captured_whole_is_no_break_where_inductor_has_none(values: dict[str, Any], captured: bool) -> None:
    assert Record("gpt2", "fp32", "passed", **values).captured is captured


def test_a_job_is_an_ordinary_run() -> None:
    untimed = overrides_of(Job("gpt2", "amp"), Settings())
    assert untimed[:3] == ["model=suite/gpt2", "model.size=smoke", "precision=amp"]
    assert "stages=[capture,precision,rewrite,fusion,buffers,autotune,codegen,runtime,validate]" in untimed
    timed = overrides_of(Job("gpt2", "amp"), Settings(peers=("eager", "inductor"), overrides=("fusion=none",)))
    assert "engine.peers=[eager,inductor]" in timed
    assert timed[-1] == "fusion=none"


def _breaks_here(value: torch.Tensor) -> torch.Tensor:
    return value + 1 if value.sum().item() > 0 else value - 1


def test_the_breaks_of_any_other_compiler_are_known_by_their_place() -> None:
    line = _breaks_here.__code__.co_firstlineno + 1
    with torch.no_grad():
        assert job.peer_breaks(lambda wrap: wrap(_breaks_here)(torch.ones(3))) == (f"{__file__}:{line}",)
        assert job.peer_breaks(lambda wrap: wrap(torch.relu)(torch.ones(3))) == ()


# ---- processes -----------------------------------------------------------------------------


def _stand_in(argument: tuple[Job, Settings, Path], tell: object) -> Record:
    """Stands in for a job, by its name."""
    work, _, folder = argument
    print("in", folder.name)
    if work.name == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if work.name == "server_dies":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    if work.name == "hangs":
        time.sleep(1000)
    if work.name == "grows":
        kept = bytearray(b"x") * (300 << 20)
        time.sleep(1000)
        del kept
    if work.name == "raises":
        raise ValueError("no such thing")
    return Record(work.name, work.precision, "passed")


def test_what_becomes_of_a_job_costs_itself_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pool, "_WARM", ())

    def outcomes(*names: str, **limits: float) -> dict[str, tuple[str, str]]:
        jobs = [Job(name, "fp32") for name in names]
        function = f"{__name__}:_stand_in"
        records = list(pool.run_jobs(jobs, Settings(), tmp_path, pool.Limits(workers=2, **limits), function))
        assert sorted(one.name for one in records) == sorted(names)
        return {one.name: (one.status, one.reason) for one in records}

    assert outcomes("dies", "raises", "resnet18") == {
        "dies": ("died", "signal SIGSEGV"),
        "raises": ("died", "ValueError: no such thing"),
        "resnet18": ("passed", ""),
    }
    assert "in resnet18-fp32" in (tmp_path / "resnet18-fp32" / "log.txt").read_text()
    assert outcomes("hangs", timeout_seconds=2) == {"hangs": ("timeout", "no answer in 2 s")}
    assert outcomes("grows", memory_mib=200) == {"grows": ("died", "used more than 200 MiB")}
    after = outcomes("server_dies", "resnet18", "gpt2")
    assert after["server_dies"][0] == "died"
    assert after["gpt2"] == ("passed", "")


# ---- the table -----------------------------------------------------------------------------


def test_the_table_says_all_in_one_line_a_model() -> None:
    text = table.markdown([FAILED, PASSED], "Suite", "python -m scripts.suite")
    assert "fp32: 1 of 2 validated, 1 failed; 2 captured with no break that Inductor lacks" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 3
    assert "| gpt2 | huggingface | fp32 | failed | 1 | 0 | – | – |" in rows[1]
    assert "output \\| differs" in rows[1]
    assert "| resnet18 | torchvision | fp32 | passed | 1 | 0 | 1.25 | 3 + 21 | 2.0 KiB |" in rows[2]


def test_empty_outputs_are_said_to_be_empty() -> None:
    nothing = Record("fcos_resnet50_fpn", "fp32", "passed", graphs=1, compared=0)
    assert "nothing was compared" in table.markdown([nothing], "Suite", "x")
    assert "nothing was compared" not in table.markdown([PASSED], "Suite", "x")


def test_what_is_wrong_has_no_speed() -> None:
    fast = {"latency_ms": {"torchweld": 1.0, "eager": 2.0}, "speedup": {"torchweld": 2.0}}
    right, wrong = Record("resnet18", "amp", "passed", **fast), Record("gpt2", "amp", "failed", **fast)
    slow = Record("vgg16", "amp", "passed", latency_ms=fast["latency_ms"], speedup={"torchweld": 0.5})
    text = table.markdown([right, wrong, slow], "Suite", "x")
    assert "torchweld 1.00 × eager, geometric mean" in text
    wrong_row = next(line for line in text.splitlines() if line.startswith("| gpt2"))
    assert "1.000" not in wrong_row
    assert "2.00" not in wrong_row
    page = table.html([right, wrong, slow], "Suite", "x < y")
    assert "x &lt; y" in page
    assert page.index("gpt2</a>") < page.index("resnet18</a>")


def test_what_eager_does_not_run_counts_for_nobody() -> None:
    unable = Record("lstm_language_model", "amp", "eager", reason="RuntimeError: no primitive")
    sums = table.summary([Record("gpt2", "amp", "passed", graphs=1), unable])
    assert sums == [
        "amp: 1 of 1 validated; 1 captured with no break that Inductor lacks",
        "amp: 1 that eager itself does not run",
    ]


# ---- the script ----------------------------------------------------------------------------


def test_names_and_options_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["resnet5"]) == 2
    assert "did you mean 'resnet50'?" in capsys.readouterr().err
    assert script.main(["--family", "huggingfac"]) == 2
    assert "did you mean 'huggingface'?" in capsys.readouterr().err
    assert script.main(["--precision", "ampp"]) == 2
    assert script.main(["--resume", "nowhere"]) == 2
    assert "no suite run" in capsys.readouterr().err
    assert script.main(["--list", "--family", "diffusers"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 15
    assert script.main(["--list", "--quick"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(script.QUICK)


@pytest.mark.slow
def test_small_models_end_to_end_and_taken_up_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--outputs", str(tmp_path), "--workers", "2"]
    assert script.main(["dcgan_generator", "lennard_jones", "soft_actor_critic", *options]) == 0
    (folder,) = (tmp_path / "suite").iterdir()
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert {line["name"] for line in lines} == {"dcgan_generator", "lennard_jones", "soft_actor_critic"}
    for line in lines:
        assert (line["status"], line["graphs"], line["breaks"]) == ("passed", 1, [])
        assert line["fused"] + line["library"] > 0
        assert line["compile_seconds"]["torchweld"] > 0
        assert (folder / "jobs" / f"{line['name']}-fp32" / "report.html").exists()
    assert (
        "3 of 3 validated; 3 captured with no break that Inductor lacks"
        in (folder / "summary" / "table.md").read_text()
    )
    assert "soft_actor_critic" in (folder / "summary" / "table.html").read_text()

    capsys.readouterr()
    again = ["lennard_jones", "dcgan_generator", "drq", "--precision", "amp,fp32", "--resume", str(folder), *options]
    assert script.main(again) == 0
    assert "4 of 6 jobs to do" in capsys.readouterr().out
    assert len((folder / "records.jsonl").read_text().splitlines()) == 7
