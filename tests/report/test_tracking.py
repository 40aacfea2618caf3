"""Tracking: what is logged, several processes on a fresh store, and a server that does not answer."""

import json
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from pipeline.commands.sync_tracking import main as sync
from pipeline.commands.ui import command as ui_command
from pipeline.commands.ui import main as ui
from pipeline.inputs import InputsRecord, TensorRecord
from pipeline.pool.client import Pool
from pipeline.pool.task import Ended, Task
from pipeline.report.record import RunRecord
from pipeline.tracking import (
    SweepPayload,
    TrackingConfig,
    default_uri,
    log_record,
    open_sweep,
    payload_of,
    read_payload,
    read_sweep_payload,
    send,
    send_sweep,
    write_payload,
    write_sweep_payload,
)
from pipeline.tracking_store import TrackingError, absolute
from stages.ir.errors import ConfigError
from tests.report.samples import record


def client_of(uri):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def runs_of(uri, experiment="torchweld"):
    client = client_of(uri)
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


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
    whole = SweepPayload(sweep, "torchweld", "passed", {"jobs.passed": 2})
    assert send_sweep(whole, ids[1:], outputs / "sweep", uri, 5.0) == parent
    runs = {run.info.run_id: run for run in runs_of(uri)}
    assert len(runs) == 5
    assert all(runs[run_id].data.tags["mlflow.parentRunId"] == parent for run_id in ids)
    assert runs[parent].info.status == "FINISHED" and runs[parent].data.metrics == {"jobs.passed": 2.0}
    assert runs[parent].data.tags["status"] == "passed"
    assert [file.path for file in client.list_artifacts(parent)] == ["sweep.md"]
    assert runs[ids[0]].data.tags["superseded"] == ids[2] and runs[ids[0]].info.status == "FAILED"
    assert runs[cut.info.run_id].info.status == "KILLED" and "superseded" in runs[cut.info.run_id].data.tags
    assert not any("superseded" in runs[run_id].data.tags for run_id in ids[1:])


def test_what_the_model_was_called_with_is_a_dataset_of_the_run(folder):
    made = record()
    tensors = (TensorRecord("input_ids", "int64", (8, 128)), TensorRecord("mask", "bool", (8, 128)))
    kinds = {"input_ids": "token_ids", "mask": "mask"}
    made.inputs = InputsRecord("bert-inputs", "0123456789abcdef", 0, (0, 1, 2), kinds, tensors)
    log_record(made, folder, TrackingConfig(), folder.parent)
    (run,) = runs_of(default_uri(folder.parent))
    assert run.data.params["inputs.input_ids"] == "int64[8, 128]" and run.data.params["inputs.mask"] == "bool[8, 128]"
    ((dataset, tags),) = [(each.dataset, each.tags) for each in run.inputs.dataset_inputs]
    assert (dataset.name, dataset.digest) == ("bert-inputs", "0123456789abcdef")
    assert [(tag.key, tag.value) for tag in tags] == [("mlflow.data.context", "validation and timing")]
    source = json.loads(dataset.source)["tags"]
    assert source["validation_seeds"] == "0, 1, 2" and source["kind.input_ids"] == "token_ids"
    assert json.loads(dataset.profile) == {"sets": 3, "elements_of_a_set": 2048}
    from mlflow.data import get_source
    from mlflow.data.schema import TensorDatasetSchema

    schema = TensorDatasetSchema.from_dict(json.loads(dataset.schema)).features
    assert [(spec.name, str(spec.type), spec.shape) for spec in schema.inputs] == [
        ("input_ids", "int64", (8, 128)),
        ("mask", "bool", (8, 128)),
    ]
    assert get_source(dataset).to_dict() == {"tags": source}


def test_neither_an_old_mlruns_folder_nor_the_working_directory_changes_where_runs_go(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlruns" / "0").mkdir(parents=True)
    (tmp_path / "mlruns" / "0" / "meta.yaml").write_text("experiment_id: '0'\nname: Default\nlifecycle_stage: active\n")
    before = sorted(tmp_path.glob("mlruns/**/*"))
    monkeypatch.chdir(tmp_path)
    assert "logged" in log_record(record(), folder, TrackingConfig(), Path("outputs"))[0]
    assert "logged" in log_record(record(), folder, TrackingConfig(uri="sqlite:///outputs/mlflow.db"), Path("o"))[0]
    assert read_payload(folder).uri == default_uri(tmp_path / "outputs")
    monkeypatch.chdir("/")
    assert len(runs_of(default_uri(folder.parent))) == 2
    assert sorted(tmp_path.glob("mlruns/**/*")) == before


def test_a_store_is_the_same_from_every_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("sqlite:///a/b.db") == f"sqlite:///{tmp_path}/a/b.db"
    assert absolute("mlruns") == absolute("./mlruns") == absolute("file:mlruns") == f"file://{tmp_path}/mlruns"
    for uri in ("sqlite:////a/b.db", "http://localhost:5000", "postgresql://me@host/db", "file:///a", "databricks"):
        assert absolute(uri) == uri


def test_nothing_of_the_machine_is_sampled_while_runs_are_logged(folder, monkeypatch):
    """Also where the user's environment asks MLflow for it: a thread of samples would disturb what is timed."""
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.01")
    before = {thread.name for thread in threading.enumerate()}
    log_record(record(), folder, TrackingConfig(), folder.parent)
    assert {thread.name for thread in threading.enumerate()} == before
    assert not [name for name in runs_of(default_uri(folder.parent))[0].data.metrics if name.startswith("system/")]


def test_a_sweep_that_no_server_took_is_made_up_for(folder, dead_server, capsys):
    sweep = {"id": "0123456789abcdef", "name": "12-00-00-sweep"}
    made = record()
    made.sweep = {**sweep, "job": "one"}
    log_record(made, folder, TrackingConfig(uri=dead_server, timeout_seconds=0.2), folder.parent)
    whole = folder.parent / "sweep"
    whole.mkdir()
    (whole / "sweep.json").write_text(json.dumps({"jobs": [{"folder": str(folder)}, {"folder": ""}]}))
    payload = SweepPayload(sweep, "torchweld", "failed", {"jobs.passed": 1.0})
    write_sweep_payload(payload, whole)
    with pytest.raises(TrackingError):
        send_sweep(payload, [], whole, dead_server, 0.2)
    assert sync([str(folder.parent), "--outputs", str(folder.parent)]) == 0
    assert sync([str(folder.parent), "--outputs", str(folder.parent)]) == 0
    assert capsys.readouterr().out.count("logged before") == 2
    runs = {run.data.tags["torchweld.kind"]: run for run in runs_of(default_uri(folder.parent))}
    parent, job = runs["sweep"], runs["job"]
    assert (parent.info.status, parent.data.tags["status"]) == ("FAILED", "failed")
    assert parent.data.metrics == {"jobs.passed": 1.0} and parent.info.run_id == read_sweep_payload(whole).run_id
    assert job.data.tags["mlflow.parentRunId"] == parent.info.run_id and "superseded" not in job.data.tags


def test_the_ui_is_for_this_machine_alone(tmp_path, capsys):
    told = ui_command("sqlite:////a/mlflow.db", 5001)
    assert told[told.index("--host") + 1] == "127.0.0.1" and told[told.index("--port") + 1] == "5001"
    assert ui(["--outputs", str(tmp_path)]) == 2
    assert "no run was logged there yet" in capsys.readouterr().err


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
    with pytest.raises(ConfigError, match=r"tracking\.alias"):
        TrackingConfig(alias="champion")
    with pytest.raises(ConfigError, match=r"tracking\.register"):
        TrackingConfig(enabled=False, register="bert")
