"""Log runs and sweeps to MLflow that could not be logged when they ran.

python -m pipeline.commands.sync_tracking outputs/2026-11-30/11-20-00-bert        # one run, to mlflow.db in `outputs`
python -m pipeline.commands.sync_tracking outputs --uri http://localhost:5000     # every run that is not logged yet
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.tracking import (
    PAYLOAD,
    SWEEP_PAYLOAD,
    default_uri,
    read_payload,
    read_sweep_payload,
    send,
    send_sweep,
)
from pipeline.tracking_store import TrackingError, absolute


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where every run is logged, 1 where one is not, 2 where there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.commands.sync_tracking", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, or folders that hold some")
    parser.add_argument("--uri", help="of the MLflow store; default: mlflow.db in --outputs")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="the output folder (default: outputs)")
    parser.add_argument("--timeout-seconds", type=float, default=5.0, help="that a server has to answer (default: 5)")
    parser.add_argument("--again", action="store_true", help="log runs anew that were logged already")
    options = parser.parse_args(arguments)
    runs, sweeps = (
        sorted({path.parent for folder in options.folders for path in folder.rglob(name)})
        for name in (PAYLOAD, SWEEP_PAYLOAD)
    )
    if not runs:
        print(f"no run in {', '.join(map(str, options.folders))}: a run folder has a file {PAYLOAD}", file=sys.stderr)
        return 2
    uri = absolute(options.uri) if options.uri else default_uri(options.outputs)
    failed = False
    # A sweep comes after its jobs: its run says which runs are its jobs.
    for sync, folders in ((_sync_run, runs), (_sync_sweep, sweeps)):
        for folder in folders:
            try:
                print(f"{folder}: {sync(folder, uri, options.timeout_seconds, options.again)}")
            except TrackingError as error:
                failed = True
                print(f"{folder}: {error}", file=sys.stderr)
    return int(failed)


def _sync_run(folder: Path, uri: str, timeout_seconds: float, again: bool) -> str:
    payload = read_payload(folder)
    if payload.run_id and not again:
        return f"logged before, as run {payload.run_id}"
    return f"run {send(payload, folder, uri, timeout_seconds)}"


def _sync_sweep(folder: Path, uri: str, timeout_seconds: float, again: bool) -> str:
    payload = read_sweep_payload(folder)
    if payload.run_id and not again:
        return f"logged before, as run {payload.run_id}"
    return f"sweep {send_sweep(payload, _jobs_of(folder), folder, uri, timeout_seconds)}"


def _jobs_of(folder: Path) -> list[str]:
    """The ids of the runs that are the jobs of the sweep in `folder`, wherever their results lie."""
    try:
        jobs = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["jobs"]
        folders = [Path(job["folder"]) for job in jobs if job["folder"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise TrackingError(f"{folder / 'sweep.json'} is no table of a sweep: {error}") from error
    found = []
    for job_folder in folders:
        with suppress(TrackingError):  # a job that the user does not track
            found.append(read_payload(job_folder).run_id)
    return [run_id for run_id in found if run_id]


if __name__ == "__main__":
    sys.exit(main())
