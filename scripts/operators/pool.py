"""Tasks in processes of their own, forked from one that has imported torch: a crash or a hang loses one task."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from scripts.operators.task import Task, run_task


@dataclass
class _Running:
    task: Task
    process: Any
    messages: Connection
    until: float
    doing: str = "starting"


def run_all(tasks: Sequence[Task], jobs: int, timeout_seconds: float) -> Iterator[dict[str, Any]]:
    """The records of `tasks` as they are made, `jobs` at a time."""
    # A collection in a forked process would touch, and so copy, all that it shares with this one.
    gc.collect()
    gc.freeze()
    waiting = list(reversed(tasks))
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(), timeout_seconds))
            wait([entry.messages for entry in running], timeout=1.0)
            for entry in list(running):
                record = _look(entry)
                if record is not None:
                    running.remove(entry)
                    yield record
    finally:
        for entry in running:
            entry.process.kill()


def _start(task: Task, timeout_seconds: float) -> _Running:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(task, sender), daemon=True)
    process.start()
    sender.close()
    return _Running(task, process, receiver, time.monotonic() + timeout_seconds)


def _work(task: Task, sender: Connection) -> None:
    gc.disable()
    # What an operator, the compiler or a library prints is of no account.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        record = run_task(task, lambda doing: sender.send(("doing", doing)))
    except Exception as error:
        record = _lost(task, "harness", f"{type(error).__name__}: {error}")
    sender.send(("record", record))
    sender.close()
    os._exit(0)


def _look(entry: _Running) -> dict[str, Any] | None:
    """The record of a task that has ended, in whatever way; None while it runs."""
    try:
        while entry.messages.poll():
            kind, content = entry.messages.recv()
            if kind == "record":
                entry.process.join()
                return content
            entry.doing = content
    except EOFError:
        entry.process.join()
        return _lost(entry.task, "crash", f"the process ended with code {entry.process.exitcode} at {entry.doing}")
    if time.monotonic() > entry.until:
        entry.process.kill()
        entry.process.join()
        return _lost(entry.task, "timeout", f"not done in time, at {entry.doing}")
    return None


def _lost(task: Task, kind: str, reason: str) -> dict[str, Any]:
    failure = {"sample": None, "kind": kind, "reason": reason[:600], "call": ""}
    counts = {"samples": 0, "layout_only": 0, "refused": 0, "graphs": 0}
    return {"op": task.name, "dtype": task.dtype, **counts, "failures": [failure], "seconds": 0.0}


