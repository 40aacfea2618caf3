"""A search as a user starts it: killed, started again, its winner made again, and all of it in MLflow."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.compose import compose
from pipeline.configure import configuration
from pipeline.search.config import Rung
from tests.sweep.test_sweep import FAST, GOOD, MODELS, ROOT, processes_of, ran, runs_in_mlflow, wait_for

GOALS = "search.goals={latency_ms: minimize, peak_mib: minimize, error_ratio: {max: 100}}"
SPACE = ("fusion=none,default", "buffers=none,best", "fusion.max_ops=int(tag(log,interval(4,64)))")


def start(here: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "run.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_a_search_that_is_killed_and_started_again(tmp_path: Path) -> None:
    (tmp_path / "models_here.py").write_text(MODELS + GOOD.format(number=0))
    command = ("-m", *FAST, "model.path=models_here:good0", "search=tpe", "search.trials=5", GOALS, *SPACE)
    command = (*command, "search.startup_trials=3", "sweep.jobs=1", "sweep.timeout_seconds=300")
    first = start(tmp_path, *command)
    assert wait_for(lambda: len(list(tmp_path.glob("outputs/*/*/*/job.json"))) >= 2, 600), first.communicate(timeout=5)
    first.kill()
    first.wait()
    assert wait_for(lambda: not processes_of(tmp_path), 20)
    before = [json.loads(path.read_text())["key"] for path in tmp_path.glob("outputs/*/*/*/job.json")]

    second = start(tmp_path, *command)
    said, _ = second.communicate(timeout=1200)
    assert second.returncode == 0, said
    (table,) = tmp_path.glob("outputs/*/*-sweep/sweep.json")
    whole = json.loads(table.read_text())
    assert [job["status"] for job in whole["jobs"]] == ["passed"] * 5
    assert {job["key"] for job in whole["jobs"] if job["kept"]} == set(before)
    assert len({job["key"] for job in whole["jobs"]}) == 5
    assert len(ran(tmp_path)) <= 5 + 1  # the one in flight may have begun twice

    winner = whole["jobs"][whole["search"]["winner"]]
    assert winner["figures"]["latency_ms"] == min(job["figures"]["latency_ms"] for job in whole["jobs"])
    rows = list(csv.DictReader((table.parent / "trials.csv").open()))
    assert [row["place"] for row in rows].count("winner") == 1 and len(rows) == 5

    parent, logged = runs_in_mlflow(tmp_path)
    assert len(logged) == 5 and parent.info.status == "FINISHED"
    assert parent.data.metrics["winner.latency_ms"] == winner["figures"]["latency_ms"]
    assert parent.data.tags["search.method"] == "tpe" and parent.data.tags["winner.job"] == winner["key"]

    (line,) = [line for line in said.splitlines() if line.startswith("the same program again: ")]
    again = start(tmp_path, *shlex.split(line.partition("python run.py ")[2]), "tracking=off")
    said, _ = again.communicate(timeout=600)
    assert again.returncode == 0, said


def test_the_rungs_that_come_with_halving_are_cheaper_than_the_run_and_each_than_the_next() -> None:
    fixed = ["search=halving"]
    settings = configuration(compose(fixed), fixed)[0].search
    rounds = [[*fixed, *rung.overrides] for rung in settings.rungs] + [fixed]
    seconds = [configuration(compose(lines), lines)[0].benchmark.min_seconds for lines in rounds]
    assert seconds == sorted(set(seconds))


def test_goals_and_rungs_can_be_said_on_the_command_line() -> None:
    rungs = "search.rungs=[{overrides: ['benchmark=quick', 'model.batch=1'], keep: 0.5}]"
    lines = ["search=halving", GOALS, rungs]
    settings = configuration(compose(lines), lines)[0].search
    assert settings.goals == {"latency_ms": "minimize", "peak_mib": "minimize", "error_ratio": {"max": 100}}
    assert settings.rungs == (Rung(("benchmark=quick", "model.batch=1"), 0.5),)


@pytest.mark.parametrize("key", ["search=random", "search.trials=3"])
def test_a_single_run_is_no_search(key: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "run.py"), key], capture_output=True, text=True)
    assert done.returncode == 2 and "add -m for a sweep" in done.stderr
