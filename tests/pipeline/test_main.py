"""The command line: exit codes, messages, and what lies in the output folder afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from pipeline.compose import compose
from pipeline.config import Config
from pipeline.configure import configuration
from pipeline.job import run
from pipeline.main import main
from pipeline.stages import STAGES
from stages.ir.errors import UserError
from tests.pipeline.fakes import Calls, install, replaced, served

ROOT = Path(__file__).parents[2]
PATH = "model.path=tests.pipeline.test_main:factory"
MODEL = ["model=custom", PATH, "+model.inputs.input={kind: float, shape: [2, 3]}"]


def factory() -> torch.nn.Module:
    return torch.nn.Linear(3, 2)


def broken_factory() -> torch.nn.Module:
    raise RuntimeError("no weights today")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return install(monkeypatch)


@pytest.fixture(scope="session")
def small() -> Config:
    overrides = [*MODEL, "device=cpu"]
    return configuration(compose(overrides), overrides)[0]


def torchweld(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["torchweld", *arguments])
    return main()


def run_folder(here: Path) -> Path:
    (folder,) = (here / "outputs").glob("*/*")
    return folder


def test_a_whole_run(here: Path, calls: Calls, monkeypatch, capsys) -> None:
    assert torchweld(monkeypatch, *MODEL, "precision=fp32", "device=cpu", "dump=true") == 0
    assert calls.order == [*STAGES, "write_report", "show_report"]
    folder = run_folder(here)
    assert folder.name.endswith("-custom-fp32")
    assert {path.name for path in folder.iterdir()} == {"dump", "explain.txt", "recipe.yaml", "results.yaml"}
    results = yaml.safe_load((folder / "results.yaml").read_text())
    assert (results["status"], results["complete"]) == ("passed", True)
    assert results["latency_ms"] == {"torchweld": 1.5, "eager": 1.5, "inductor": 1.5}
    out = capsys.readouterr().out
    assert "torchweld: custom in fp32 on cpu" in out
    assert "timed against: eager, inductor" in out


def test_a_wrong_result_exits_1_and_shows_no_speed(here: Path, monkeypatch, capsys) -> None:
    calls = install(monkeypatch, passed=False)
    assert torchweld(monkeypatch, *MODEL, "device=cpu") == 1
    assert "benchmark" not in calls.order
    results = yaml.safe_load((run_folder(here) / "results.yaml").read_text())
    assert results["status"] == "failed"
    assert "latency_ms" not in results
    out = capsys.readouterr().out
    assert "VALIDATION FAILED" in out
    assert "output is wrong" in out
    assert "the first wrong step was not found" in out  # the stages that do nothing cannot be run step by step


@pytest.mark.parametrize("stage", list(STAGES))
def test_ctrl_c_in_any_stage(small: Config, tmp_path: Path, calls: Calls, monkeypatch, capsys, stage: str) -> None:
    def interrupt(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    replaced(monkeypatch, stage, interrupt)
    assert run(small, None, tmp_path) == 130
    results = yaml.safe_load((tmp_path / "results.yaml").read_text())
    assert (results["status"], results["complete"], results["stopped_in"]) == ("interrupted", False, stage)
    assert "latency_ms" not in results
    assert not (tmp_path / "recipe.yaml").exists()
    assert (tmp_path / "kept").read_text() == "interrupted"  # to be logged later
    assert f"interrupted in {stage}" in capsys.readouterr().out


def test_ctrl_c_while_logging_leaves_whole_results(
    small: Config, tmp_path: Path, calls: Calls, monkeypatch, capsys
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    served(monkeypatch, "log_run", interrupt)
    assert run(small, None, tmp_path) == 130
    assert yaml.safe_load((tmp_path / "results.yaml").read_text())["status"] == "passed"
    assert (tmp_path / "recipe.yaml").exists()
    assert "are whole, but not all of them were logged" in capsys.readouterr().out


def test_a_users_error_in_a_stage_leaves_nothing(here: Path, calls: Calls, monkeypatch, capsys) -> None:
    def no_compiler(*arguments: object) -> None:
        raise UserError("there is no C++ compiler", "install g++")

    replaced(monkeypatch, "codegen", no_compiler)
    assert torchweld(monkeypatch, *MODEL, "device=cpu") == 2
    assert "error: there is no C++ compiler\n  install g++" in capsys.readouterr().err
    assert not list((here / "outputs").iterdir())


def test_a_fault_of_ours_is_marked_and_raised(small: Config, tmp_path: Path, calls: Calls, monkeypatch) -> None:
    def fault(*arguments: object) -> None:
        raise ZeroDivisionError("ours")

    replaced(monkeypatch, "buffers", fault)
    with pytest.raises(ZeroDivisionError):
        run(small, None, tmp_path)
    results = yaml.safe_load((tmp_path / "results.yaml").read_text())
    assert (results["status"], results["stopped_in"]) == ("error", "buffers")


def test_two_runs_of_one_second_get_two_folders(here: Path, calls: Calls, monkeypatch) -> None:
    import datetime

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz=None):  # type: ignore[no-untyped-def]
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr("pipeline.main.datetime", Frozen)
    for _ in range(2):
        assert torchweld(monkeypatch, *MODEL, "device=cpu") == 0
    names = sorted(path.name for path in (here / "outputs" / "2026-01-02").iterdir())
    assert names == ["03-04-05-custom-fp32", "03-04-05-custom-fp32-2"]


def test_a_recipe_makes_the_same_program_without_tuning(here: Path, calls: Calls, monkeypatch, capsys) -> None:
    assert torchweld(monkeypatch, *MODEL, "device=cpu", "precision=amp") == 0
    recipe = run_folder(here) / "recipe.yaml"
    recipe = recipe.rename(here / "recipe.yaml")
    calls.order.clear()
    trust = "trust=[tests]"
    assert torchweld(monkeypatch, f"recipe={recipe}", trust) == 0
    assert "autotune" not in calls.order
    assert len(list((here / "outputs").glob("*/*-custom-amp*/results.yaml"))) == 2
    assert "no difference" in capsys.readouterr().out
    assert torchweld(monkeypatch, f"recipe={recipe}", trust, "precision=fp32", "seed=3") == 0
    (again,) = (here / "outputs").glob("*/*-custom-fp32/recipe.yaml")
    config = yaml.safe_load(again.read_text())["config"]
    assert (config["precision"]["mode"], config["seed"], config["model"]["name"]) == ("fp32", 3, "custom")
    assert torchweld(monkeypatch, f"recipe={recipe}") == 2
    assert "add trust=[tests]" in capsys.readouterr().err


def test_a_strict_run_is_the_recipe_s_or_none(here: Path, calls: Calls, monkeypatch, capsys) -> None:
    assert torchweld(monkeypatch, *MODEL, "device=cpu") == 0
    made = run_folder(here) / "recipe.yaml"
    strict = (f"recipe={made.rename(here / 'mine.yaml')}", "trust=[tests]", "recipe.strict=true", "benchmark=quick")
    assert torchweld(monkeypatch, *strict) == 0
    recipe = yaml.safe_load((here / "mine.yaml").read_text())
    (here / "mine.yaml").write_text(yaml.safe_dump({**recipe, "versions": {**recipe["versions"], "torch": "0"}}))
    before = sorted((here / "outputs").rglob("*"))
    calls.order.clear()
    capsys.readouterr()
    assert torchweld(monkeypatch, *strict, "precision=amp") == 2
    said = capsys.readouterr().err
    assert "recipe.strict: 2 differences from " in said and "\n    torch: 0 in the recipe, " in said
    assert "\n    config.precision.mode: fp32 in the recipe, amp here" in said
    assert calls.order == [] and sorted((here / "outputs").rglob("*")) == before
    (here / "mine.yaml").write_text(
        yaml.safe_dump({**recipe, "weights": "others", "kernels": [{"name": "sum", "hash": "ab"}]})
    )
    assert torchweld(monkeypatch, *strict) == 2
    said = capsys.readouterr().err
    assert "weights: others in the recipe, those that" in said
    assert "kernel sum ab: launched once in the recipe, not there here" in said
    assert "validate" not in calls.order and sorted((here / "outputs").rglob("*")) == before
    assert torchweld(monkeypatch, *strict[:2], "benchmark=quick") == 0, "without recipe.strict it is told"
    assert "against the recipe: kernel sum ab: launched once in the recipe, not there here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["precison=amp"], "precison: there is no such group or key\n  did you mean 'precision'?"),
        (["precision=apm"], "did you mean 'amp'?"),
        (["fusion.max_ops=-1"], "fusion.max_ops: "),
        (["-m", "precision=fp32,apm"], "did you mean 'amp'?"),
        (["--cfg", "job", "model=brt"], "did you mean 'bert'?"),
        (["sweep.jobs=2"], "sweep.jobs: is for the jobs of a sweep, and this is a single run\n  add -m"),
        (["-m", "sweep.jobs=0"], "sweep.jobs: 0 is too few"),
        (["-m", "hydra.sweep.subdir=x"], "hydra.sweep.subdir: is for sweeps with hydra/launcher"),
        ([*MODEL, "outputs=/proc/nowhere"], "outputs=/proc/nowhere: a run folder cannot be made there"),
        (["model=custom", "model.path=no_such_package:f", MODEL[2]], "'no_such_package' does not import"),
        (["model=custom", "model.path=tests.pipeline.test_main:nothing", MODEL[2]], "'nothing' of module"),
        (["model=custom", "model.path=tests.pipeline.test_main:broken_factory", MODEL[2]], "no weights today"),
        (
            [*MODEL[:2], "+model.inputs.input={kind: float, shape: [2, 5]}"],
            "custom does not take its inputs (input: float32[2, 5])",
        ),
        ([*MODEL[:2], "+model.inputs.z={kind: float, shape: [2, 3]}"], "custom does not take its inputs (z: "),
        (["recipe=nowhere.yaml"], "recipe=nowhere.yaml cannot be read"),
        (["recipe=nowhere"], "recipe: there is no 'nowhere'\n  there are, the nearest first: "),
        (["recipe.strict=true"], "recipe.strict: holds a run to a recipe, and none is named"),
    ],
)
def test_what_the_user_can_mend_exits_2_with_one_message(
    here: Path, calls: Calls, monkeypatch, capsys, arguments: list[str], said: str
) -> None:
    assert torchweld(monkeypatch, *arguments, *([] if "-m" in arguments else ["device=cpu"])) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert said in err
    assert "Traceback" not in err
    assert not list(here.glob("outputs/*/*"))


def test_cuda_without_a_gpu(here: Path, calls: Calls, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert torchweld(monkeypatch, *MODEL, "device=cuda") == 2
    assert "device=cpu runs everywhere" in capsys.readouterr().err
    assert not (here / "outputs").exists()


def test_run_py_from_another_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "run.py")]
    done = subprocess.run([*command, "precison=amp"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: precison: ")
    assert not list(tmp_path.iterdir())
    done = subprocess.run([*command, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert "torchweld model=bert precision=amp" in done.stdout
    assert "precision: amp, bf16, fp16, fp32, tf32" in done.stdout
    assert not list(tmp_path.iterdir())
