"""What is done inside the forked processes of a sweep: know the jobs, run one, log the sweep.

Each function takes one picklable argument and `tell`, which says something to the sweep while the function runs.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from pipeline import job
from pipeline.config import Config
from pipeline.device import describe, device_of, versions
from pipeline.models.load import check_importable
from pipeline.pool.task import Waiting
from pipeline.progress import Progress
from pipeline.recipe import Recipe, plain
from pipeline.report.record import RunRecord
from pipeline.result import Result
from pipeline.sweep import record as records
from pipeline.sweep.identity import Identity, identity_of
from pipeline.sweep.record import JobRecord
from pipeline.tracking import (
    SYNC,
    SweepPayload,
    open_sweep,
    payload_of,
    read_payload,
    send,
    send_sweep,
    store_of,
    write_payload,
    write_sweep_payload,
)
from pipeline.tracking_store import TrackingError, without_password
from stages.ir.errors import UserError
from stages.ir.words import counted

Tell = Callable[[object], None]


@dataclass(frozen=True)
class Work:
    """One job to run. sweep: as in `pipeline.report.record.RunRecord`."""

    record: JobRecord
    config: Config
    recipe: Recipe | None
    sweep: Mapping[str, str]


@dataclass(frozen=True)
class Stage:
    """A job tells this when it comes to another stage."""

    name: str


# ---- before the sweep ----------------------------------------------------------------------


def identify(configs: list[Config], tell: Tell) -> list[Identity | str]:
    """Who each job is; or, as text, the error that keeps it from running at all.

    This touches devices and imports model libraries, so it is done in a process of its own. A user's own model is not
    imported: what it does when it is, concerns its own job.
    """
    return [_identify(config) for config in configs]


def _identify(config: Config) -> Identity | str:
    try:
        return _identity(config)
    except UserError as error:
        return str(error)


def _identity(config: Config) -> Identity:
    device = device_of(config.device)
    if config.device.threads:
        torch.set_num_threads(config.device.threads)
    custom = config.model.library == "custom"
    if not custom:
        check_importable(config.model)
    return identity_of(config, describe(device), versions([] if custom else [config.model.library]))


def announce(announcement: tuple[Config, Mapping[str, str]], tell: Tell) -> list[str]:
    """Make the sweep known to MLflow, and the store if there is none yet; lines for the user where that fails.

    Done before the first job, so that no job is killed for the time that it takes.
    """
    config, sweep = announcement
    try:
        open_sweep(sweep, config.tracking.experiment, _uri(config), config.tracking.timeout_seconds)
    except TrackingError as error:
        return [f"the sweep is not in MLflow yet: {error}"]
    return []


# ---- one job -------------------------------------------------------------------------------


def run(work: Work, tell: Tell) -> tuple[str, str]:
    """Run the job into its folder; its status and why it has no result, in a line. With a result, its record is there.

    Raises what `pipeline.job.run` does, except what a user can mend and want of memory.
    """
    began = time.time()

    def written(result: Result) -> None:
        wrong = result.status == "failed"
        reason = next(iter(result.validation.reasons), "the result is wrong") if wrong else ""
        done = replace(
            work.record,
            status=result.status,
            reason=reason,
            started=began,
            seconds=time.time() - began - progress.waited,
        )
        records.write(done)

    progress = _Telling(tell)
    sweep = {**work.sweep, "job": work.record.key}
    try:
        code = job.run(work.config, work.recipe, Path(work.record.folder), progress, sweep=sweep, written=written)
    except UserError as error:
        print(f"error: {error}")
        short = isinstance(error.__cause__, torch.OutOfMemoryError)
        return "memory" if short else "error", _first_line(error)
    except (torch.OutOfMemoryError, MemoryError) as error:
        traceback.print_exc()
        return "memory", f"{type(error).__name__}: {_first_line(error)}"
    return _STATUS.get(code, "failed"), ""


_STATUS = {job.OK: "passed", job.INTERRUPTED: "interrupted"}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


class _Telling(Progress):
    """Tells the sweep what stage the job is at, beside what it says in the log. waited: seconds, for other timings."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self.waited = 0.0
        self._tell = tell
        self._since = 0.0

    @contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        self._tell(Stage(name))
        with super().stage(name, detail):
            yield

    def waiting(self, on: bool) -> None:
        super().waiting(on)
        if on:
            self._since = time.monotonic()
        else:
            self.waited += time.monotonic() - self._since
        self._tell(Waiting(on))
        self._tell(Stage("waiting to time" if on else self.current))


# ---- after the sweep -----------------------------------------------------------------------


def log_jobs(work: tuple[list[tuple[JobRecord, Config]], Mapping[str, str]], tell: Tell) -> tuple[list[str], list[str]]:
    """Log those of the jobs that could not log themselves; the ids of all, and lines for the user where that fails."""
    jobs, sweep = work
    counting, missed = [], []
    for record, config in jobs:
        try:
            counting.append(_logged(record, config, sweep))
        except (TrackingError, OSError) as error:
            missed.append(f"job {record.number} ({record.name}) is not in MLflow: {error}")
    return counting, missed


@dataclass(frozen=True)
class Publication:
    """A sweep to log, with the files in `folder`.

    metrics, tags   of the sweep as a whole
    counting        ids of its jobs' runs
    """

    config: Config
    sweep: Mapping[str, str]
    status: str
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    counting: tuple[str, ...]
    folder: str


def log_sweep(publication: Publication, tell: Tell) -> str:
    """Bring the sweep's own run up to date; a line for the user."""
    tracking, folder = publication.config.tracking, Path(publication.folder)
    payload = SweepPayload(
        *(dict(publication.sweep), tracking.experiment, publication.status),
        *(dict(publication.metrics), dict(publication.tags)),
    )
    uri = _uri(publication.config)
    try:
        write_sweep_payload(payload, folder)
        run_id = send_sweep(payload, publication.counting, folder, uri, tracking.timeout_seconds)
    except (TrackingError, OSError) as error:
        later = f"{SYNC} {folder} --uri {without_password(uri)}"
        return f"the sweep is not in MLflow: {error}\nto log it and its jobs later: {later}"
    jobs = counted(len(publication.counting), "job")
    return f"logged to MLflow: experiment '{tracking.experiment}', sweep {run_id}, {jobs}"


def _logged(record: JobRecord, config: Config, sweep: Mapping[str, str]) -> str:
    """The id of the job's run in MLflow, which is made now where the job did not come to it."""
    folder = Path(record.folder)
    with suppress(TrackingError):
        payload = read_payload(folder)
        if payload.status == record.status:
            return payload.run_id or send(payload, folder, _uri(config), config.tracking.timeout_seconds)
    unfinished = RunRecord(
        record.name,
        started=_iso(record.started),
        seconds=record.seconds,
        config=plain(asdict(config)),
        device={"name": record.device},
        partial=record.reason or record.status,
        sweep={**sweep, "job": record.key},
    )
    payload = payload_of(unfinished, config.tracking.experiment)
    tags = {**payload.tags, "status": record.status, "reason": record.reason, "config_hash": record.config_hash}
    payload = replace(payload, status=record.status, tags=tags)
    write_payload(payload, folder)
    return send(payload, folder, _uri(config), config.tracking.timeout_seconds)


def _uri(config: Config) -> str:
    return store_of(config.tracking, Path(config.outputs))


def _iso(seconds: float) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds") if seconds else ""
