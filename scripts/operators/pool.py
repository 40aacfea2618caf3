"""Tasks in processes of their own, forked from one that has imported torch: a crash or a hang loses one task.

Several may share a process; if that one is lost, each of them gets its own.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from scripts.operators.task import Task, run_tasks


@dataclass
class _Running:
    tasks: Sequence[Task]
    process: Any
    messages: Connection
    until: float
    doing: str = "starting"


def run_all(tasks: Sequence[Task], jobs: int, timeout_seconds: float, together: int = 1) -> Iterator[dict[str, Any]]:
    """The records of `tasks` as they are made, in `jobs` processes at a time, each for `together` tasks."""
    # A collection in a forked process would touch, and so copy, all that it shares with this one.
    gc.collect()
    gc.freeze()
    waiting = [tasks[first : first + together] for first in range(0, len(tasks), together)][::-1]
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(), timeout_seconds))
            wait([entry.messages for entry in running], timeout=1.0)
            for entry in list(running):
                records = _look(entry)
                if records is not None:
                    running.remove(entry)
                    lost = len(entry.tasks) > 1 and records[0]["failures"] and records[0]["samples"] == 0
                    if lost:
                        waiting += [[task] for task in reversed(entry.tasks)]
                    else:
                        yield from records
    finally:
        for entry in running:
            entry.process.kill()


def _start(tasks: Sequence[Task], timeout_seconds: float) -> _Running:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(tasks, sender), daemon=True)
    process.start()
    sender.close()
    return _Running(tasks, process, receiver, time.monotonic() + timeout_seconds)


def _work(tasks: Sequence[Task], sender: Connection) -> None:
    gc.disable()
    # What an operator, the compiler or a library prints is of no account.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        records = run_tasks(tasks, lambda doing: sender.send(("doing", doing)))
    except Exception as error:
        records = _lost(tasks, "harness", f"{type(error).__name__}: {error}")
    sender.send(("records", records))
    sender.close()
    os._exit(0)


def _look(entry: _Running) -> list[dict[str, Any]] | None:
    """The records of tasks that have ended, in whatever way; None while they run."""
    try:
        while entry.messages.poll():
            kind, content = entry.messages.recv()
            if kind == "records":
                entry.process.join()
                return content
            entry.doing = content
    except EOFError:
        entry.process.join()
        return _lost(entry.tasks, "crash", f"the process ended with code {entry.process.exitcode} at {entry.doing}")
    if time.monotonic() > entry.until:
        entry.process.kill()
        entry.process.join()
        return _lost(entry.tasks, "timeout", f"not done in time, at {entry.doing}")
    return None


def _lost(tasks: Sequence[Task], kind: str, reason: str) -> list[dict[str, Any]]:
    failure = {"sample": None, "kind": kind, "reason": reason[:600], "call": ""}
    counts = {"samples": 0, "layout_only": 0, "refused": 0, "graphs": 0}
    return [{"op": task.name, "dtype": task.dtype, **counts, "failures": [failure], "seconds": 0.0} for task in tasks]
