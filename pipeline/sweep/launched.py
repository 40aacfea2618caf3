"""A sweep whose jobs a launcher of Hydra's runs; what the user gets of it is what a sweep of our own gives.

Comes in: the jobs. Goes out: an exit code. Hydra decides where and when a job runs, and calls a `Worker` there. Here is
done what concerns the sweep as a whole: its run in MLflow, its progress, its table, Ctrl-C. Whether a job has run, and
how it ended, is read from the records in the sweep's folder, which every machine has to reach.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
from rich.console import Console

from pipeline.config import Config
from pipeline.environment import environment
from pipeline.main import quoted, through_hydra
from pipeline.pool.client import Pool
from pipeline.sweep import launchers, places
from pipeline.sweep import record as records
from pipeline.sweep.board import Board
from pipeline.sweep.identity import identity_of
from pipeline.sweep.planning import Planned, planned_of, sweep_id
from pipeline.sweep.record import JobRecord
from pipeline.sweep.run import LOG, Sweep
from pipeline.sweep.source import Grid, Job
from pipeline.sweep.worker import STOP, Worker
from stages.ir.words import counted

_LOOK_SECONDS = 2.0


def run_launched(
    jobs: Sequence[Job], folder: Path, arguments: Sequence[str], launcher: tuple[str, str], console: Console
) -> int:
    """Let Hydra run `jobs` into `folder`; the exit code.

    arguments   of the command line; launcher: the name in `hydra/launcher` and the class behind it
    """
    config = jobs[0].config
    identities = [identity_of(job.config, "", {}) for job in jobs]  # the device is another machine's, perhaps
    planned = [planned_of(number, job, identities[number], {}) for number, job in enumerate(jobs)]
    sweep = {"id": sweep_id([each.config_hash + each.code for each in identities]), "name": folder.name}
    gpus, at_once = room_for([job.config for job in jobs])
    here = tuple(gpus) or ("",) * at_once if launchers.runs_here(launcher[1]) else ()
    head = (socket.gethostname(), os.getpid())
    worker = Worker(sweep, str(folder), os.getcwd(), head, _own_path(), here)
    console.print(f"sweep: {counted(len(jobs), 'job')} by {launcher[0]}; results in {folder}", markup=False)
    about = launchers.Outlook(
        *(len(jobs), at_once, len(gpus), config.device.kind == "cuda"),
        *(config.sweep.timeout_seconds, config.sweep.memory_mib),
    )
    defaults = launchers.defaults_of(launcher[0], about, arguments)
    task: Any = hydra.main(config_path="pkg://conf", config_name="config", version_base="1.3")(worker)
    (folder / STOP).unlink(missing_ok=True)
    before = {path: records.read(path) for path in _files(folder)}
    with Pool(["pipeline.sweep.job"]) as pool:
        running = Sweep.of(planned, pool, folder, sweep, console)
        running.announce()
        with (
            _shown(planned, folder, before, at_once, console),
            _asking_to_stop(folder, console),
            environment(_for_others()),
        ):
            try:
                failure = through_hydra(task, _arguments(arguments, folder, defaults))
            except KeyboardInterrupt:
                (folder / STOP).touch()
                failure = None
        interrupted = (folder / STOP).exists()
        for each in planned:
            each.record = _outcome(each, folder, before, interrupted)
        if failure:
            running.notes.append("the launcher failed; its own words are above")
        places.clear(folder)
        (folder / STOP).unlink(missing_ok=True)
        return running.concluded(interrupted)


def room_for(configs: Sequence[Config]) -> tuple[Sequence[str], int]:
    """The GPUs of this machine if jobs of `configs` use them, and how many jobs may run at once on it.

    One a GPU; without GPUs, `sweep.jobs`. A job that names a GPU other than the first knows what it does.
    """
    use_gpus = all(config.device.kind != "cpu" and config.device.index == 0 for config in configs)
    gpus = places.gpus_seen() if use_gpus else ()
    return gpus, len(gpus) or configs[0].sweep.jobs


def _arguments(arguments: Sequence[str], folder: Path, defaults: Sequence[str]) -> list[str]:
    """What Hydra is started with. Of its own log the user would read what the sweep says already."""
    kept = [text for text in arguments if not text.startswith("hydra.sweep.dir=")]
    quiet = [] if any(text.startswith("hydra/hydra_logging=") for text in kept) else ["hydra/hydra_logging=none"]
    return [*kept, *defaults, *quiet, f"hydra.sweep.dir={quoted(folder)}"]


def _own_path() -> tuple[str, ...]:
    """Where this process finds modules, less what any Python of the same environment finds by itself."""
    entries = (Path(entry).absolute() for entry in sys.path)
    installed = (Path(sys.prefix), Path(sys.base_prefix))
    return tuple(str(entry) for entry in entries if not any(entry.is_relative_to(place) for place in installed))


# ---- what the jobs came to -----------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    return list(folder.glob(f"*/{records.FILE}"))


def _fresh(folder: Path, before: Mapping[Path, JobRecord | None]) -> dict[int, JobRecord]:
    """By number, the records in `folder` that were not there before."""
    found = ((path, records.read(path)) for path in _files(folder))
    return {record.number: record for path, record in found if record is not None and record != before.get(path)}


def _outcome(planned: Planned, folder: Path, before: Mapping[Path, JobRecord | None], interrupted: bool) -> JobRecord:
    """What is known of a job after all: its record, of now or kept from before; else that it has none, and why."""
    fresh = _fresh(folder, before).get(planned.record.number)
    if fresh is not None:
        return fresh
    mine, rerun = planned.record, planned.job.config.sweep.rerun or Grid.rerun
    for record in before.values():  # the user named the folder, and the job found its own result there
        if record is not None and _same(record, mine) and records.to_keep(record, rerun):
            return replace(record, number=mine.number, overrides=mine.overrides, kept=True)
    own = folder / f"{mine.number}-{mine.name}"
    if not own.is_dir():
        return mine
    status = "interrupted" if interrupted else "crashed"
    reason = "the sweep was stopped" if interrupted else "the launcher's process ended before the job did"
    tail = records.tail(own / LOG, planned.job.config.sweep.log_lines)
    return replace(mine, status=status, reason=reason, folder=str(own), log_tail=tail)


def _same(one: JobRecord, other: JobRecord) -> bool:
    return (one.config_hash, one.code) == (other.config_hash, other.code)


@contextmanager
def _shown(
    planned: Sequence[Planned],
    folder: Path,
    before: Mapping[Path, JobRecord | None],
    at_once: int,
    console: Console,
) -> Iterator[None]:
    """Tell of jobs as their records come, from wherever they run."""
    over = threading.Event()

    def show() -> None:
        started: set[int] = set()
        ended: set[int] = set()
        with Board(console, len(planned), 0, at_once) as board:
            while True:
                last = over.wait(_LOOK_SECONDS)
                for each in planned:
                    number = each.record.number
                    if number not in started and (folder / f"{number}-{each.record.name}").is_dir():
                        started.add(number)
                        board.started(each.record)
                for number, record in _fresh(folder, before).items():
                    # The job's own record comes first; how long it took in all, and its memory, a little later.
                    if number not in ended and (record.peak_mib or last):
                        ended.add(number)
                        board.ended(record)
                board.update()
                if last:
                    return

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---- around the launcher -------------------------------------------------------------------


@contextmanager
def _asking_to_stop(folder: Path, console: Console) -> Iterator[None]:
    """At Ctrl-C ask the jobs to end, wherever they are, and let the launcher wait for them; at a second one, do not."""

    def asked(*about: object) -> None:
        if (folder / STOP).exists():
            raise KeyboardInterrupt
        with suppress(OSError):
            (folder / STOP).touch()
        console.print("stopping: the running jobs write what they have; once more does not wait for them")

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, asked) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _for_others() -> dict[str, str]:
    """The environment in which processes that a launcher starts find our modules, and Ray sends no reports."""
    return {"PYTHONPATH": os.pathsep.join(_own_path()), "RAY_USAGE_STATS_ENABLED": "0"}
