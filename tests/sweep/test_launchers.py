"""Sweeps by launchers of Hydra's: the same table, resume, exit code and MLflow as our own; one job a GPU."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.main import main
from pipeline.sweep import launched, launchers, places
from pipeline.sweep import record as records
from pipeline.sweep.command import checked
from pipeline.sweep.identity import identity_of
from pipeline.sweep.launchers import Outlook, defaults_of
from pipeline.sweep.record import JobRecord
from stages.ir.errors import ConfigError
from tests.sweep.test_sweep import FAST, ROOT, models_in, name_of, processes_of, ran, runs_in_mlflow, start, wait_for

INSTALLED = {
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
    "ray": "hydra_plugins.hydra_ray_launcher",
}
SEES_GPU = """
def sees_gpu{number}():
    noted("gpu=" + os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
    time.sleep(8)
    return Net()
"""


def jobs_of(here: Path, sweep: int) -> dict[str, dict]:
    """By the model's name, the jobs in the table of the sweep that was the so-manieth."""
    tables = sorted(here.glob("outputs/*/*-sweep/sweep.json"), key=lambda path: path.stat().st_mtime)
    return {name_of(job): job for job in json.loads(tables[sweep].read_text())["jobs"]}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", INSTALLED)
def test_a_launcher_gives_what_our_own_sweep_gives(tmp_path: Path, launcher: str) -> None:
    pytest.importorskip(INSTALLED[launcher])
    models_in(tmp_path, 1)
    models, bad = ["good0", "crash", "wrong"], {"crash": "crashed", "wrong": "failed"}
    for turn in range(2):
        sweep = start(tmp_path, models, f"hydra/launcher={launcher}")
        said, _ = sweep.communicate(timeout=900)
        assert sweep.returncode == 1, said
        assert "3 jobs (" in said and "1 passed, 1 crashed, 1 failed" in said
        assert "segmentation fault (SIGSEGV)" in said and "in crash" in said
        jobs = jobs_of(tmp_path, turn)
        assert {name: job["status"] for name, job in jobs.items()} == {"good0": "passed", **bad}
        assert [name for name, job in jobs.items() if job["kept"]] == ["good0"] * turn
        assert sorted(ran(tmp_path)) == sorted(["good0", *["crash", "wrong"] * (turn + 1)])
        parent, logged = runs_in_mlflow(tmp_path)
        assert parent.info.status == "FAILED" and parent.data.metrics["jobs.passed"] == 1
        assert sorted((job["mlflow_run"], job["status"]) for job in jobs.values()) == sorted(
            (run.info.run_id, run.data.tags["status"]) for run in logged
        )
    ours = start(tmp_path, models[:1])  # what a launcher's job found, our own sweep takes
    said, _ = ours.communicate(timeout=300)
    assert ours.returncode == 0 and "1 job (1 kept): 1 passed" in said, said
    assert wait_for(lambda: not processes_of(tmp_path), 20)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", INSTALLED)
def test_ctrl_c_ends_the_jobs_of_a_launcher_and_prints_the_table(tmp_path: Path, launcher: str) -> None:
    pytest.importorskip(INSTALLED[launcher])
    models_in(tmp_path, 1)
    more = ("tracking=off", "sweep.jobs=1", "sweep.timeout_seconds=600", f"hydra/launcher={launcher}")
    sweep = start(tmp_path, ["hang", "good0"], *more)
    assert wait_for(lambda: (tmp_path / "ran.txt").exists()), sweep.communicate(timeout=5)
    sweep.send_signal(signal.SIGINT)
    said, _ = sweep.communicate(timeout=300)
    assert sweep.returncode == 130, said
    assert "2 jobs (0 kept): 1 interrupted, 1 not run" in said
    assert ran(tmp_path) == ["hang"]
    assert wait_for(lambda: not processes_of(tmp_path), 20)


@pytest.mark.slow
def test_nothing_runs_on_when_a_sweep_by_joblib_is_killed(tmp_path: Path) -> None:
    pytest.importorskip(INSTALLED["joblib"])
    models_in(tmp_path, 1)
    sweep = start(tmp_path, ["hang"], "tracking=off", "sweep.timeout_seconds=600", "hydra/launcher=joblib")
    assert wait_for(lambda: (tmp_path / "ran.txt").exists()), sweep.communicate(timeout=5)
    sweep.kill()
    sweep.wait()
    assert wait_for(lambda: not processes_of(tmp_path), 60)
    sweep.communicate()


@pytest.mark.slow
def test_under_joblib_each_job_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    """On a machine that says it has two; jobs then see that there is none, and take the CPU."""
    pytest.importorskip(INSTALLED["joblib"])
    models_in(tmp_path, 1)
    with open(tmp_path / "models_here.py", "a") as file:
        file.write("import os\n" + "".join(SEES_GPU.format(number=number) for number in range(3)))
    program = "import sys, torch; torch.cuda.device_count = lambda: 2; from pipeline.main import main; sys.exit(main())"
    paths = ",".join(f"models_here:sees_gpu{number}" for number in range(3))
    given = [*FAST, f"model.path={paths}", "tracking=off", "hydra/launcher=joblib", "device=auto", "sweep.jobs=3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "4,7", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, "-m", *given]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 jobs (0 kept): 3 passed" in done.stdout
    saw = ran(tmp_path)
    assert set(saw[:2]) == {"gpu=4", "gpu=7"} and len(saw) == 3 and saw[2] in saw[:2]


class NoPool:
    """In the place of the pool where nothing is to be forked."""

    def __init__(self, modules: list[str]) -> None:
        pass

    def __enter__(self) -> NoPool:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def test_a_job_that_left_no_record_says_why_and_a_result_in_a_named_folder_is_kept(tmp_path: Path, monkeypatch) -> None:
    jobs = [checked([f"seed={seed}", "tracking=off", "device=cpu"], None) for seed in range(3)]
    console = Console(width=200, record=True, file=io.StringIO())

    def run(launch: Callable[[], int | None]) -> tuple[int, list[tuple[str, bool]]]:
        monkeypatch.setattr(launched, "through_hydra", lambda task, arguments: launch())
        code = launched.run_launched(jobs, tmp_path, ["-m", "seed=0,1,2"], ("basic", "BasicLauncher"), console)
        table = json.loads((tmp_path / "sweep.json").read_text())["jobs"]
        return code, [(job["status"], job["kept"]) for job in table]

    def breaks() -> int:
        for number, job in enumerate(jobs[:2]):
            (tmp_path / f"{number}-{job.config.job}").mkdir()
        mine = identity_of(jobs[0].config, "a GPU", {"torch": "2.14.1"})
        about = (jobs[0].config.job, jobs[0].overrides, mine.key, mine.config_hash, mine.code, mine.device)
        folder = tmp_path / f"0-{jobs[0].config.job}"
        records.write(JobRecord(0, *about, status="passed", folder=str(folder), peak_mib=1.0))
        return 1

    monkeypatch.setattr(launched, "Pool", NoPool)
    assert run(breaks) == (1, [("passed", False), ("crashed", False), ("not run", False)])
    said = console.export_text()
    assert "the launcher's process ended before the job did" in said and "note: the launcher failed" in said
    assert "[0] minilm-fp32 passed" in said and "(1 of 3 done, 1 running, 0 failed" in said
    assert run(lambda: None) == (1, [("passed", True), ("crashed", False), ("not run", False)])

    def stopped() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    assert run(stopped) == (130, [("passed", True), ("interrupted", False), ("not run", False)])
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_place_is_one_jobs_until_it_ends(tmp_path: Path) -> None:
    with places.taken(tmp_path, 2) as one:
        with places.taken(tmp_path, 2) as two, places.taken(tmp_path, 2, given_up=lambda: True) as three:
            assert (one, two, three) == (0, 1, None)
        with places.taken(tmp_path, 2) as again:
            assert again == 1
    places.clear(tmp_path)
    assert not os.listdir(tmp_path)


def test_gpus_are_those_that_this_process_may_use(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert places.gpus_seen() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa, 3")
    assert places.gpus_seen() == ("GPU-aa", "3")


def test_what_a_launcher_is_told_unless_the_user_does(monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    outlook = Outlook(jobs=5, at_once=2, gpus=2, cuda=True, timeout_seconds=1200.0, memory_mib=8000)

    def told(name: str, *given: str) -> dict[str, str]:
        texts = defaults_of(name, outlook, given)
        assert all(text.startswith("++hydra.launcher.") for text in texts)
        return dict(text.removeprefix("++hydra.launcher.").split("=") for text in texts)

    assert told("joblib") == {"n_jobs": "2"} and told("joblib", "hydra.launcher.n_jobs=1") == {}
    assert told("submitit_local") == {"timeout_min": "90"}  # three rounds of 20 minutes and 10 to start
    assert told("submitit_slurm") == {"timeout_min": "30", "gpus_per_node": "1", "mem_gb": "10"}
    local = {"ray.init.num_cpus": "2", "ray.init.include_dashboard": "false", "ray.remote.num_gpus": "1"}
    assert told("ray") == local
    assert told("ray", "hydra.launcher.ray.init.address=auto") == {"ray.remote.num_gpus": "1"}
    assert told("mine") == {}
    assert launchers.runs_here("hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher")
    assert not launchers.runs_here("hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher")


def test_a_launcher_that_is_not_there_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr(launchers, "_found", lambda package: False)
    with pytest.raises(ConfigError, match=r"pip install 'torchweld\[submitit\]'"):
        launchers.check_installed(["hydra/launcher=submitit_slurm"])
    launchers.check_installed(["hydra/launcher=basic", "seed=1"])


def test_a_sweeper_of_hydras_is_refused(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["torchweld", "-m", "hydra/sweeper=optuna", "seed=1,2"])
    assert main() == 2
    assert "hydra/sweeper" in capsys.readouterr().err
