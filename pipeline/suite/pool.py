"""Runs jobs in processes of their own, so many at a time, each within its time and memory.

Comes in: jobs and the settings of the run. Goes out: a `Record` of each as it ends. The processes are forked by
`pipeline.pool`, from one that has been taken through a small model (`pipeline.suite.warm`), which takes longer than
most jobs. Nothing that a job does can end the run: it is killed with its children, or dies, and its record says so.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.pool.client import Pool, PoolDied
from pipeline.pool.task import Ended, Task
from pipeline.suite.record import Job, Record

FUNCTION = "pipeline.suite.job:perform"
_WARM = ("pipeline.suite.job", "pipeline.suite.warm")


@dataclass(frozen=True)
class Limits:
    """How many jobs at a time, and for how long and with how much resident memory each; 0 sets no limit."""

    workers: int = 1
    timeout_seconds: float = 0.0
    memory_mib: float = 0.0


def run_jobs(
    jobs: Sequence[Job], settings: Any, folder: Path, limits: Limits, function: str = FUNCTION
) -> Iterator[Record]:
    """The record of each job, in the order in which they end.

    settings   a `pipeline.suite.job.Settings`
    folder     each job gets a folder of its own in it, with what its run leaves and `log.txt`
    function   what a process calls, with the job, the settings and its folder
    """
    waiting, running = list(enumerate(jobs)), dict[int, float]()
    with Pool(_WARM) as pool:
        while waiting or running:
            while waiting and len(running) < limits.workers:
                number, job = waiting.pop(0)
                running[number] = time.monotonic()
                own = folder / str(job)
                own.mkdir(parents=True, exist_ok=True)
                log = own / "log.txt"
                log.unlink(missing_ok=True)
                argument = (job, settings, own)
                task = Task(number, function, argument, str(log), (), limits.timeout_seconds, limits.memory_mib)
                try:
                    pool.start(task)
                except PoolDied:
                    break  # which `events` tells, too
            for ended in _ends(pool, running):
                del running[ended.number]
                yield _record(jobs[ended.number], ended, limits)


def _ends(pool: Pool, running: dict[int, float]) -> list[Ended]:
    """The tasks that have ended; all of those `running`, if the process that they were forked from is gone."""
    try:
        return [event for event in pool.events(None) if isinstance(event, Ended)]
    except PoolDied as death:
        lost = [
            Ended(number, -signal.SIGKILL, raised=str(death), seconds=time.monotonic() - since)
            for number, since in running.items()
        ]
        pool.restart()
        return lost


def _record(job: Job, ended: Ended, limits: Limits) -> Record:
    """What the job itself recorded or, if it came to nothing, how its process ended."""
    if isinstance(ended.value, Record):
        return ended.value
    status, reason = "died", f"exit code {ended.code}"
    if ended.cause == "timeout":
        status, reason = "timeout", f"no answer in {limits.timeout_seconds:g} s"
    elif ended.cause == "memory":
        reason = f"used more than {limits.memory_mib:.0f} MiB"
    elif ended.raised:
        reason = ended.raised
    elif ended.code < 0:
        reason = f"signal {signal.Signals(-ended.code).name}"
        if ended.oom_kills:
            reason += ": the machine ran out of memory"
    return Record(job.name, job.precision, status, reason=reason, seconds=round(ended.seconds, 1))
