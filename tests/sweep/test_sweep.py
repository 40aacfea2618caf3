"""Sweeps as a user starts them: jobs that break in every way, a sweep that is killed and started again, a full disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MODELS = """
import ctypes, time
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.layer(x))

class Wrong(Net):
    def forward(self, x):
        return super().forward(x) * (2 if torch.compiler.is_compiling() else 1)

def noted(name):
    with open("ran.txt", "a") as file:
        file.write(name + "\\n")

def crash():
    noted("crash")
    ctypes.string_at(0)

def hang():
    noted("hang")
    time.sleep(1000)

def grow():
    noted("grow")
    kept = []
    while True:
        kept.append(bytearray(b"x") * (64 << 20))

def wrong():
    noted("wrong")
    return Wrong()
"""
GOOD = """
def good{number}():
    noted("good{number}")
    return Net()
"""
FAST = (
    "stages=[capture,fusion,buffers,codegen,runtime,validate,benchmark]",
    *("engine=eager", "benchmark=quick", "benchmark.min_seconds=0.1", "benchmark.warmup_seconds=0", "device=cpu"),
    *("model=custom", "+model.inputs.x={kind: float, shape: [4, 8]}"),
    *("sweep.timeout_seconds=45", "sweep.memory_mib=3000", "sweep.jobs=2"),
)


def start(here: Path, models: list[str], *more: str) -> subprocess.Popen[str]:
    """`python run.py -m model.path=...` in the folder `here`."""
    paths = ",".join(f"models_here:{name}" for name in models)
    command = [sys.executable, str(ROOT / "run.py"), "-m", *FAST, f"model.path={paths}", *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def models_in(here: Path, good: int) -> list[str]:
    """Write the models into `here`; their names, the bad ones among the good ones."""
    names = [f"good{number}" for number in range(good)]
    (here / "models_here.py").write_text(MODELS + "".join(GOOD.format(number=number) for number in range(good)))
    return [names[0], "crash", *names[1 : good // 2], "hang", "grow", *names[max(1, good // 2) :], "wrong"]


def ran(here: Path) -> list[str]:
    return (here / "ran.txt").read_text().split()


def done_in(here: Path) -> dict[str, Path]:
    """The records of jobs that are right, by the model's name."""
    found = {}
    for path in here.glob("outputs/*/*/*/job.json"):
        record = json.loads(path.read_text())
        if record["status"] == "passed":
            found[name_of(record)] = path
    return found


def name_of(record: dict) -> str:
    return next(text for text in record["overrides"] if text.startswith("model.path=")).rpartition(":")[2]


def processes_of(here: Path) -> list[str]:
    """The processes that run in the folder `here`."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/cwd") == str(here):
                found.append(name)
        except OSError:
            continue
    return found


def wait_for(condition, seconds: float = 300.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def runs_in_mlflow(here: Path) -> tuple[object, list]:
    """The sweep's parent run, and the runs of its jobs that count."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{here}/outputs/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("torchweld").experiment_id])
    (parent,) = [run for run in runs if run.data.tags["torchweld.kind"] == "sweep"]
    jobs = [run for run in runs if run.data.tags["torchweld.kind"] == "job"]
    assert all(run.data.tags["mlflow.parentRunId"] == parent.info.run_id for run in jobs)
    assert all(run.info.status != "RUNNING" for run in runs)
    return parent, [run for run in jobs if "superseded" not in run.data.tags]


@pytest.mark.parametrize("good", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_sweep_that_is_killed_and_started_again(tmp_path: Path, good: int) -> None:
    models = models_in(tmp_path, good)
    first = start(tmp_path, models)
    assert wait_for(lambda: len(done_in(tmp_path)) >= max(1, good // 2)), first.communicate(timeout=5)
    first.kill()
    first.wait()
    assert wait_for(lambda: not processes_of(tmp_path), 20)
    before = done_in(tmp_path)

    second = start(tmp_path, models)
    said, _ = second.communicate(timeout=900)
    assert second.returncode == 1, said
    (table,) = tmp_path.glob("outputs/*/*-sweep/sweep.json")
    jobs = json.loads(table.read_text())["jobs"]
    bad = {"crash": "crashed", "hang": "timeout", "grow": "memory", "wrong": "failed"}
    assert {name_of(job): job["status"] for job in jobs} == {name: bad.get(name, "passed") for name in models}
    assert {name_of(job) for job in jobs if job["kept"]} == set(before)
    assert all(ran(tmp_path).count(name) == 1 for name in before)
    for job in jobs:
        if job["status"] == "passed":
            assert job["figures"]["latency_ms"] > 0 and Path(job["folder"], "recipe.yaml").exists()
        else:
            assert job["reason"] and job["figures"].get("latency_ms") is None
    assert f"{len(jobs)} jobs ({len(before)} kept)" in said
    assert "segmentation fault (SIGSEGV)" in said and "in crash" in said and "in hang" in said
    for name in ("sweep.md", "report.html"):
        assert "segmentation fault" in (table.parent / name).read_text()

    parent, logged = runs_in_mlflow(tmp_path)
    assert parent.info.status == "FAILED" and parent.data.metrics["jobs.passed"] == good
    assert sorted((job["mlflow_run"], job["status"]) for job in jobs) == sorted(
        (run.info.run_id, run.data.tags["status"]) for run in logged
    )
    assert {run.data.tags["config_hash"] for run in logged} == {job["config_hash"] for job in jobs}


def test_ctrl_c_ends_the_jobs_and_prints_the_table(tmp_path: Path) -> None:
    models_in(tmp_path, 1)
    sweep = start(tmp_path, ["hang", "good0", "crash"], "tracking=off", "sweep.jobs=1", "sweep.timeout_seconds=600")
    assert wait_for(lambda: (tmp_path / "ran.txt").exists()), sweep.communicate(timeout=5)
    sweep.send_signal(signal.SIGINT)
    said, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 130
    assert "3 jobs (0 kept): 1 interrupted, 2 not run" in said
    assert wait_for(lambda: not processes_of(tmp_path), 20)
    assert ran(tmp_path) == ["hang"]


def test_a_full_disk_fails_jobs_and_keeps_what_was_there(tmp_path: Path) -> None:
    """On a disk of 400 KiB of its own where this user may mount one; else with files limited to 16 KiB."""
    models_in(tmp_path, 1)
    (tmp_path / "outputs" / "before").mkdir(parents=True)
    (tmp_path / "outputs" / "before" / "results.json").write_text("{}")
    command = f"{sys.executable} {ROOT / 'run.py'} -m " + " ".join(
        f"'{text}'" for text in (*FAST, "model.path=models_here:good0", "tracking=off", f"seed={seeds(6)}")
    )
    small = "mount -t tmpfs -o size=400k none outputs && cp -r before outputs/"
    shutil.copytree(tmp_path / "outputs" / "before", tmp_path / "before")
    mounts = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "outputs"], cwd=tmp_path).returncode == 0
    script = f"{small}; {command}; code=$?; cp -r outputs after; exit $code"
    shell = ["unshare", "-rm", "sh", "-c", script] if mounts else ["sh", "-c", f"ulimit -f 32; {command}"]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in done.stderr
    assert ("No space left on device" if mounts else "File too large") in said
    assert "6 jobs (0 kept)" in said
    outputs = tmp_path / ("after" if mounts else "outputs")
    assert (outputs / "before" / "results.json").read_text() == "{}"
    for path in [*outputs.glob("*/*/*/job.json"), *outputs.glob("*/*/*/results.json")]:
        assert json.loads(path.read_text())


def seeds(count: int) -> str:
    return ",".join(map(str, range(count)))


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    models_in(tmp_path, 1)
    sweep = start(tmp_path, ["good0", "crash"], "sweep.dry_run=true")
    said, _ = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, said
    assert "2 jobs: 2 would run, 0 would be skipped" in said
    assert not (tmp_path / "outputs").exists() and not (tmp_path / "ran.txt").exists()


def test_a_launcher_of_hydras_runs_the_same_jobs(tmp_path: Path) -> None:
    models_in(tmp_path, 1)
    sweep = start(tmp_path, ["good0", "crash"], "hydra/launcher=basic", "tracking=off")
    said, _ = sweep.communicate(timeout=600)
    assert sweep.returncode == 1, said
    assert "2 jobs (0 kept): 1 passed, 1 crashed" in said
    assert "segmentation fault (SIGSEGV)" in said
