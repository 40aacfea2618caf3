"""MLflow's server: one backed by PostgreSQL, with many jobs at once, and the UI of the default store."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pipeline.pool.client import Pool
from pipeline.pool.task import Ended, Task
from pipeline.report.record import RunRecord
from pipeline.tracking import TrackingConfig, default_uri, log_record, open_sweep
from tests.report.samples import record
from tests.report.test_tracking import PROCESSES, client_of, runs_of

ROOT = Path(__file__).parents[2]
POSTGRES = [path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
SWEEP = {"id": "0123456789abcdef", "name": "12-00-00-sweep"}

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int, here: Path) -> Iterator[str]:
    """`command` until the end, once it answers at the port: its address."""
    address = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(here / "server.log", "w") as log:
        server = subprocess.Popen(command, cwd=here, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 300
            while not answers(address):
                assert server.poll() is None and time.monotonic() < end, (here / "server.log").read_text()
                time.sleep(0.5)
            yield address
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, 15)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, 9)
                server.wait()


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/health", timeout=2).close()
    except (OSError, urllib.error.URLError):
        return False
    return True


@pytest.fixture
def database() -> Iterator[str]:
    """The URI of an empty database of a PostgreSQL of its own, in a folder of its own, on a socket there."""
    if not POSTGRES:
        pytest.skip("there is no /usr/lib/postgresql (apt install postgresql)")
    pytest.importorskip("psycopg2")
    tools = POSTGRES[-1]
    # PostgreSQL refuses to be run by root; Debian's package makes a user for it.
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    who = {"user": user.pw_uid, "group": user.pw_gid} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="torchweld-postgres-"))
    os.chown(folder, user.pw_uid, user.pw_gid)

    def call(tool: str, *arguments: str) -> None:
        command = [str(tools / tool), *arguments]
        with open(folder / f"{tool}.log", "a") as log:
            done = subprocess.run(command, cwd=folder, stdout=log, stderr=log, timeout=120, **who)
        assert done.returncode == 0, (folder / f"{tool}.log").read_text()

    data = ("-D", str(folder / "data"))
    try:
        call("initdb", *data, "-U", "torchweld", "-A", "trust", "--no-sync")
        call("pg_ctl", *data, "-w", "-o", f"-c listen_addresses='' -c fsync=off -k {folder}", "start")
        call("createdb", "-h", str(folder), "-U", "torchweld", "mlflow")
        yield f"postgresql+psycopg2://torchweld@/mlflow?host={folder}"
    finally:
        subprocess.run([str(tools / "pg_ctl"), *data, "-m", "immediate", "stop"], cwd=folder, **who)
        shutil.rmtree(folder)


def log_job(argument, tell):
    """Log a job of the sweep as soon as all the other processes are ready to."""
    number, folder, uri = argument
    mine = Path(folder) / f"job{number}"
    mine.mkdir()
    (mine / "explain.txt").write_text(f"job {number}")
    while len(list(Path(folder).glob("job*"))) < PROCESSES:
        time.sleep(0.01)
    made = record()
    made.name, made.sweep = f"job{number}", {**SWEEP, "job": f"key{number}"}
    return log_record(made, mine, TrackingConfig(uri=uri, timeout_seconds=60), Path(folder))


def test_many_jobs_at_once_are_recorded_by_a_server_on_postgresql(database: str, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "artifacts").mkdir()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", database, "--artifacts-destination", str(tmp_path / "artifacts")),
    ]
    said = []
    with serving(command, port, tmp_path) as address, Pool(["mlflow.tracking", "pipeline.tracking"]) as pool:
        parent = open_sweep(SWEEP, "torchweld", address, 60)
        for number in range(PROCESSES):
            argument = (number, str(tmp_path), address)
            pool.start(Task(number, "tests.report.test_tracking_server:log_job", argument))
        while len(said) < PROCESSES:
            said += [event.value for event in pool.events(None) if isinstance(event, Ended)]
        assert all("logged to MLflow" in line for (line,) in said), said
        runs = {run.info.run_name: run for run in runs_of(address) if run.info.run_id != parent}
        assert set(runs) == {f"job{number}" for number in range(PROCESSES)}
        for run in runs.values():
            assert run.data.tags["mlflow.parentRunId"] == parent and "superseded" not in run.data.tags
            assert run.info.status == "FINISHED" and run.data.metrics["latency_ms.torchweld.median"] == 10.0
            assert [file.path for file in client_of(address).list_artifacts(run.info.run_id)] == ["explain.txt"]


def test_the_ui_answers_on_this_machine_alone(tmp_path: Path) -> None:
    outputs, port = tmp_path / "outputs", free_port()
    (outputs / "run").mkdir(parents=True)
    assert "logged" in log_record(RunRecord("one"), outputs / "run", TrackingConfig(), outputs)[0]
    command = [sys.executable, "-m", "pipeline.commands.ui", "--outputs", str(outputs), "--port", str(port)]
    with serving(command, port, tmp_path) as address:
        assert [run.info.run_name for run in runs_of(address)] == ["one"]
        listens = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        at_port = [place for place in listens if int(place.rpartition(":")[2], 16) == port]
        assert {place.partition(":")[0] for place in at_port if place} >= {"0100007F"}
        assert not any(place.startswith("00000000") for place in at_port)
        six = Path("/proc/net/tcp6")
        assert not six.exists() or f":{port:04X} " not in six.read_text()
    assert [run.info.run_name for run in runs_of(default_uri(outputs))] == ["one"]
