"""Runs jobs in processes of their own, so many at a time, each with a time limit.

On a CPU the processes are forked from one server that has imported torch and the model libraries, which takes longer
than most jobs; where CUDA is used they are spawned, for a fork may not use a CUDA that its parent has begun to use.
Nothing that a job does can end the run: it is killed with its children, or dies, and its record says so.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pipeline.suite.record import Job, Record

_PRELOAD = ("pipeline.suite.job", "pipeline.suite.warm")


@dataclass
class _Running:
    job: Job
    process: Any
    answer: Connection
    started: float


def run_jobs(
    jobs: Sequence[Job], settings: Any, folder: Path, workers: int, timeout_seconds: float
) -> Iterator[Record]:
    """The record of each job, in the order in which they end.

    settings   a `pipeline.suite.job.Settings`
    folder     each job gets a folder of its own in it, with what its run leaves and `log.txt`
    """
    context: Any
    if settings.device == "cpu":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOAD))
    else:
        context = multiprocessing.get_context("spawn")
    waiting, running = list(jobs), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start(context, waiting.pop(0), settings, folder, timeout_seconds))
            wait([one.answer for one in running], timeout=1.0)
            for one in list(running):
                record = _ended(one, timeout_seconds)
                if record is not None:
                    running.remove(one)
                    yield record
    finally:
        for one in running:
            _kill(one)


def _start(context: Any, job: Job, settings: Any, folder: Path, timeout_seconds: float) -> _Running:
    ours, theirs = context.Pipe(duplex=False)
    arguments = (job, settings, folder / str(job), theirs, timeout_seconds)
    process = context.Process(target=_child, args=arguments, name=str(job))
    process.start()
    theirs.close()
    return _Running(job, process, ours, time.monotonic())


def _ended(one: _Running, timeout_seconds: float) -> Record | None:
    """The record of a job that has ended or run out of time; None for one that is at work."""
    took = time.monotonic() - one.started
    if one.answer.poll():
        try:
            record: Record = one.answer.recv()
        except EOFError:
            one.process.join()
            code = one.process.exitcode
            how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
            record = Record(one.job.name, one.job.precision, "died", reason=how, seconds=round(took, 1))
    elif took > timeout_seconds:
        reason = f"no answer in {timeout_seconds:g} s"
        record = Record(one.job.name, one.job.precision, "timeout", reason=reason, seconds=round(took, 1))
    else:
        return None
    _kill(one)
    return record


def _kill(one: _Running) -> None:
    """End the process and the compilers that it started: it leads a process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(one.process.pid, signal.SIGKILL)
    one.process.kill()
    one.process.join()
    one.answer.close()


def _child(job: Job, settings: Any, folder: Path, answer: Connection, timeout_seconds: float) -> None:
    os.setsid()
    _die_with_parent()
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    # The log of a job that is killed for its time ends with where it was.
    faulthandler.dump_traceback_later(0.95 * timeout_seconds, file=sys.stderr)
    from pipeline.suite.job import run

    answer.send(run(job, settings, folder))


def _die_with_parent() -> None:
    """Let Linux kill this process when the one that it was forked from ends: a run that was killed leaves nothing."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
