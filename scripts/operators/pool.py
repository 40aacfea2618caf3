"""Tasks in processes of their own, forked from one that has imported torch: a crash or a hang loses one task.

Several may share a process; those that were tried together when it was lost are tried again, each in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pipeline.pool.client import Pool
from pipeline.pool.crew import Crew, Done, Share
from scripts.operators.task import Task, print_triton, run_tasks

# Torch's list of operators, and what compiling the first of them would import.
WARM = (
    "scripts.operators.pool",
    "torch.testing._internal.common_methods_invocations",
    "torch._inductor.scheduler",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.testing",
    "torch._dynamo.repro.after_aot",
    "torch._export.db.logging",
    "pipeline.configure",
    "stages.codegen.cpp",
)
WORK = "scripts.operators.pool:work"
BATCHES_OF_A_WORKER = 8


def run_all(
    tasks: Sequence[Task], jobs: int, timeout_seconds: float, together: int = 1, triton: bool = False
) -> Iterator[dict[str, Any]]:
    """The records of `tasks` as they are made, in `jobs` processes at a time; `together` are tried in one graph.

    timeout_seconds   that a step (an operator in eager, a graph of some of its samples) may take
    triton            kernels are printed in Triton and interpreted; TRITON_INTERPRET has to be set
    """
    batches = [list(tasks[first : first + together]) for first in range(0, len(tasks), together)]
    a_worker = min(BATCHES_OF_A_WORKER, -(-len(batches) // jobs))
    with Pool(WARM) as pool:
        crew = Crew(pool, WORK, triton, iter(batches), jobs, a_worker, timeout_seconds)
        for event in crew:
            if isinstance(event.told, list):
                yield from event.told
            if event.ended is not None:
                if len(event.batch) > 1:
                    crew.again([[task] for task in event.batch])
                elif event.ended.cause == "silence":
                    yield lost(event.batch[0], "timeout", f"not done in time, at {event.last}")
                else:
                    reason = f"the process ended with code {event.ended.code} at {event.last} {event.ended.raised}"
                    yield lost(event.batch[0], "crash", reason.rstrip())


def work(share: Share, tell: Callable[[object], None]) -> None:
    """Run batches of tasks. Tells what it is at, as text; then the batch's records."""
    torch.set_num_threads(1)
    if share.common:
        print_triton()
    for tasks in share.batches:
        try:
            tell(run_tasks(tasks, tell))
        except Exception as error:
            tell([lost(task, "harness", f"{type(error).__name__}: {error}") for task in tasks])
        tell(Done())


def lost(task: Task, kind: str, reason: str) -> dict[str, Any]:
    """The record of a task that made none itself."""
    failure = {"sample": None, "kind": kind, "reason": reason[:600], "call": ""}
    counts = {"samples": 0, "layout_only": 0, "refused": 0, "graphs": 0}
    return {"op": task.name, "dtype": task.dtype, **counts, "failures": [failure], "seconds": 0.0}
