"""Tracking: what is logged, several processes on a fresh store, and a server that does not answer."""

import json
import shutil
import socket
import time
from pathlib import Path

import pytest

from pipeline.commands.sync_tracking import main as sync
from pipeline.pool.client import Pool
from pipeline.pool.task import Ended, Task
from pipeline.report.record import RunRecord
from pipeline.tracking import (
    TrackingConfig,
    default_uri,
    log_record,
    open_sweep,
    payload_of,
    read_payload,
    send,
    send_sweep,
    write_payload,
)
from pipeline.tracking_store import TrackingError
from stages.ir.errors import ConfigError
from tests.report.samples import record


def client_of(uri):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def runs_of(uri, experiment="torchweld"):
    client = client_of(uri)
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """A store with its tables made, which takes MLflow many seconds, and nothing in it."""
    outputs = tmp_path_factory.mktemp("store")
    client_of(default_uri(outputs)).search_experiments()
    return outputs / "mlflow.db"


@pytest.fixture
def folder(tmp_path, empty_store):
    made = tmp_path / "outputs" / "run"
    made.mkdir(parents=True)
    shutil.copy(empty_store, made.parent)
    (made / "report.html").write_text("<html></html>")
    (made / "sources").mkdir()
    (made / "sources" / "kernels.cpp").write_text("void kernel() {}")
    return made


@pytest.fixture
def dead_server():
    """The address of a port that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_run_is_in_the_store_with_all_of_its_parts(folder):
    outputs = folder.parent
    said = log_record(record(), folder, TrackingConfig(), outputs)
    (run,) = runs_of(default_uri(outputs))
    assert said == [f"logged to MLflow: experiment 'torchweld', run {run.info.run_id}, store {default_uri(outputs)}"]
    assert run.info.status == "FINISHED" and run.info.run_name == "bert-fp32"
    assert run.data.params["model.batch"] == "8" and run.data.params["versions.torch"] == "2.14.1"
    assert run.data.metrics["latency_ms.torchweld.median"] == 10.0
    assert run.data.metrics["speedup_ratio.torchweld.value"] == 2.0
    assert run.data.tags["status"] == run.data.tags["gate"] == "passed"
    assert run.data.tags["device"] == "a CPU" and len(run.data.tags["config_hash"]) == 16
    files = {file.path for file in client_of(default_uri(outputs)).list_artifacts(run.info.run_id)}
    assert files == {"report.html", "sources"}
    assert Path(run.info.artifact_uri.removeprefix("file://")).is_relative_to(outputs)
    assert read_payload(folder).run_id == run.info.run_id


def test_a_failed_run_is_logged_as_failed_and_without_times(folder):
    payload = payload_of(record(passed=False), "torchweld")
    assert payload.tags["status"] == payload.tags["gate"] == "failed"
    assert not [name for name in payload.metrics if name.startswith(("latency", "speedup", "items", "compile"))]
    log_record(record(passed=False), folder, TrackingConfig(), folder.parent)
    assert runs_of(default_uri(folder.parent))[0].info.status == "FAILED"


def first_touch(argument, tell):
    """Log a run as soon as all the other processes are ready to."""
    number, outputs = argument
    folder = Path(outputs) / f"run{number}"
    folder.mkdir()
    while len(list(Path(outputs).glob("run*"))) < PROCESSES:
        time.sleep(0.01)
    return log_record(RunRecord(f"run{number}"), folder, TrackingConfig(), Path(outputs))


PROCESSES = 8


def test_processes_that_meet_on_a_fresh_store_are_all_recorded(tmp_path):
    said = []
    with Pool(["mlflow.tracking", "pipeline.tracking"]) as pool:
        for number in range(PROCESSES):
            pool.start(Task(number, "tests.report.test_tracking:first_touch", (number, str(tmp_path))))
        while len(said) < PROCESSES:
            said += [event.value for event in pool.events(None) if isinstance(event, Ended)]
    assert all("logged to MLflow" in line for (line,) in said)
    assert {run.info.run_name for run in runs_of(default_uri(tmp_path))} == {f"run{at}" for at in range(PROCESSES)}


def test_a_process_killed_while_it_makes_the_store_leaves_none(tmp_path):
    with Pool(["mlflow.tracking", "pipeline.tracking"]) as pool:
        pool.start(Task(0, "tests.report.test_tracking:first_touch", (0, str(tmp_path))))
        for number in range(1, PROCESSES):
            (tmp_path / f"run{number}").mkdir()
        while not (tmp_path / "mlflow.db.draft").exists():
            assert not pool.events(0.02)
    assert not (tmp_path / "mlflow.db").exists()
    (line,) = log_record(RunRecord("after"), tmp_path / "run0", TrackingConfig(), tmp_path)
    assert "logged to MLflow" in line
    assert [run.info.run_name for run in runs_of(default_uri(tmp_path))] == ["after"]
    assert not list(tmp_path.glob("*.draft*"))


def test_a_sweep_is_a_parent_with_its_jobs_below(folder):
    outputs, uri = folder.parent, default_uri(folder.parent)
    sweep = {"id": "0123456789abcdef", "name": "12-00-00-sweep"}
    parent = open_sweep(sweep, "torchweld", uri, 5.0)
    ids = []
    for job, passed in (("one", False), ("two", True), ("one", True)):  # job one runs again
        made = record(passed)
        made.sweep = {**sweep, "job": job}
        assert "logged" in log_record(made, folder, TrackingConfig(), outputs)[0]
        ids.append(read_payload(folder).run_id)
    client = client_of(uri)
    cut = client.create_run(client.get_run(parent).info.experiment_id, tags={**client.get_run(ids[1]).data.tags})
    (outputs / "sweep").mkdir()
    (outputs / "sweep" / "sweep.md").write_text("a table")
    assert send_sweep(sweep, "torchweld", "passed", {"jobs.passed": 2}, ids[1:], outputs / "sweep", uri, 5.0) == parent
    runs = {run.info.run_id: run for run in runs_of(uri)}
    assert len(runs) == 5
    assert all(runs[run_id].data.tags["mlflow.parentRunId"] == parent for run_id in ids)
    assert runs[parent].info.status == "FINISHED" and runs[parent].data.metrics == {"jobs.passed": 2.0}
    assert runs[parent].data.tags["status"] == "passed"
    assert [file.path for file in client.list_artifacts(parent)] == ["sweep.md"]
    assert runs[ids[0]].data.tags["superseded"] == ids[2] and runs[ids[0]].info.status == "FAILED"
    assert runs[cut.info.run_id].info.status == "KILLED" and "superseded" in runs[cut.info.run_id].data.tags
    assert not any("superseded" in runs[run_id].data.tags for run_id in ids[1:])


def test_a_server_that_does_not_answer_costs_a_message_and_can_be_made_up_for(folder, dead_server, capsys):
    config = TrackingConfig(uri=dead_server, timeout_seconds=0.2)
    first, second = log_record(record(), folder, config, folder.parent)
    assert f"the server {dead_server} did not answer (" in first
    assert f"python -m pipeline.commands.sync_tracking {folder} --uri {dead_server}" in second
    assert read_payload(folder).metrics["latency_ms.torchweld.median"] == 10.0
    assert sync([str(folder), "--uri", dead_server, "--timeout-seconds", "0.2"]) == 1
    assert "did not answer" in capsys.readouterr().err
    assert sync([str(folder.parent), "--outputs", str(folder.parent)]) == 0
    assert sync([str(folder.parent), "--outputs", str(folder.parent)]) == 0
    assert "logged before" in capsys.readouterr().out
    assert len(runs_of(default_uri(folder.parent))) == 1


def test_no_run_to_log_is_told(tmp_path, capsys):
    assert sync([str(tmp_path)]) == 2
    assert "tracking.json" in capsys.readouterr().err


def test_tracking_can_be_turned_off(folder):
    assert log_record(record(), folder, TrackingConfig(enabled=False), folder.parent) == []
    assert not (folder.parent / "mlflow.db.lock").exists() and (folder / "tracking.json").exists()


def test_long_values_are_cut_and_say_so(folder):
    long = record()
    long.config["notes"] = "x" * 10_000
    uri = default_uri(folder.parent)
    payload = payload_of(long, "torchweld")
    write_payload(payload, folder)
    send(payload, folder, uri, 5.0)
    value = runs_of(uri)[0].data.params["notes"]
    assert len(value) == 6000 and value.endswith("(cut from 10000 characters; whole in results.json)")


def test_a_password_in_the_address_is_not_shown(folder, dead_server):
    config = TrackingConfig(uri=dead_server.replace("//", "//me:secret@"), timeout_seconds=0.2)
    said = log_record(record(), folder, config, folder.parent)
    assert "secret" not in " ".join(said) and "***@" in said[0]


def test_a_broken_payload_is_told(folder):
    (folder / "tracking.json").write_text(json.dumps({"nope": 1}))
    with pytest.raises(TrackingError, match="cannot be read"):
        read_payload(folder)


def test_config_errors_name_the_key():
    with pytest.raises(ConfigError, match=r"tracking\.timeout_seconds"):
        TrackingConfig(timeout_seconds=0)
