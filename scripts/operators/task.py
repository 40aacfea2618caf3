"""One operator in one type: its calls run in eager and compiled, several in one graph, and judged.

Comes in: a `Task`. Goes out: a record, plain data for a line of JSON.

A call that differs is compiled again alone: what differs only beside others is a fault of fusion, and told as one.
Most of the time goes into starting things (Dynamo, AOTAutograd, the C++ compiler). So several operators can be tried
in one graph: those that agree there are done, and each of the others (also where Dynamo breaks) is run by itself.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from pipeline.backend import torchweld
from scripts.operators.cases import Call, calls_of
from scripts.operators.judge import differences

TOGETHER = 16


@dataclass(frozen=True)
class Task:
    """What to run.

    samples       how many of the operator's samples; None is all
    uninitialised whether the values are those of memory that nobody wrote
    unwritten     positions of results of which the same is true
    overrides     of the config
    """

    name: str
    dtype: str
    device: str = "cpu"
    samples: int | None = None
    uninitialised: bool = False
    overrides: tuple[str, ...] = ()
    unwritten: tuple[int, ...] = ()


@dataclass
class Eager:
    """What eager makes of a call: a result or an exception, and whether it drew random numbers."""

    call: Call
    result: Any = None
    error: Exception | None = None
    random: bool = False


@dataclass
class Found:
    """Counts and failures, for the record."""

    graphs: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, call: Call, kind: str, reason: str) -> None:
        entry = {"sample": call.number, "kind": kind, "reason": reason[:600], "call": str(call)[:300]}
        self.failures.append(entry)


Known = Mapping[Task, Sequence[Eager]]
Progress = Callable[[str], None]


def run_tasks(tasks: Sequence[Task], progress: Progress) -> list[dict[str, Any]]:
    """The records of `tasks`, tried in one graph first. `progress` is told what runs, so that a crash can be placed."""
    warnings.simplefilter("ignore")
    known = {}
    for task in tasks:
        progress(f"{task.name} in eager")
        known[task] = [in_eager(call) for call in calls_of(task.name, task.dtype, task.device, task.samples)]
    agreeing = _agreeing(_fit_for_one_graph(known, progress), progress) if len(tasks) > 1 else set()
    return [_record(task, known[task], progress, task in agreeing) for task in tasks]


def _fit_for_one_graph(known: Known, progress: Progress) -> Known:
    """The tasks that Dynamo alone captures as one graph: one that breaks would break the graph of all."""
    fit = {}
    for task, entries in known.items():
        if len(entries) <= TOGETHER and all(entry.error is None for entry in entries):
            progress(f"{task.name} through Dynamo")
            if in_one_graph([entry.call for entry in entries]):
                fit[task] = entries
    return fit


def _agreeing(tried: Known, progress: Progress) -> set[Task]:
    """The tasks all of whose calls agree in one graph; where all cannot be one graph, each half is tried."""
    if len(tried) < 2:
        return set()
    progress(f"{', '.join(task.name for task in tried)} together")
    listed = [(task, entry) for task, entries in tried.items() for entry in entries]
    try:
        results, graphs = compiled([entry.call for _, entry in listed], next(iter(tried)).overrides)
        whole = graphs == 1 and not torch._dynamo.utils.counters["graph_break"]
    except Exception:
        whole = False
    if not whole:
        order = list(tried.items())
        halves = (dict(order[: len(order) // 2]), dict(order[len(order) // 2 :]))
        return set().union(*(_agreeing(half, progress) for half in halves))
    pairs = zip(listed, results, strict=True)
    return set(tried) - {task for (task, entry), got in pairs if _reasons(task, entry, got)}


def _record(task: Task, known: Sequence[Eager], progress: Progress, agrees: bool) -> dict[str, Any]:
    """The record of `task`; of one that `agrees` nothing is run."""
    start = time.perf_counter()
    usable = [entry for entry in known if entry.error is None and not agrees]
    found = Found(graphs=int(agrees))
    for first in range(0, len(usable), TOGETHER):
        group = usable[first : first + TOGETHER]
        progress(f"{task.name}, samples {[entry.call.number for entry in group]}")
        _judge_group(task, group, found)
    for entry in known:
        if entry.error is not None:
            progress(f"{task.name}, sample {entry.call.number}, which eager refuses")
            _judge_refusal(task, entry, found)
    return {
        "op": task.name,
        "dtype": task.dtype,
        "samples": len(known),
        "layout_only": sum((entry.random or task.uninitialised) and entry.error is None for entry in known),
        "refused": sum(entry.error is not None for entry in known),
        "graphs": found.graphs,
        "failures": found.failures,
        "seconds": round(time.perf_counter() - start, 2),
    }


def in_eager(call: Call) -> Eager:
    """Eager's result of a copy of `call`."""
    copy = call.copied()
    torch.manual_seed(0)
    before = _generators()
    with torch.no_grad():
        try:
            result = copy.function(*copy.args, **copy.kwargs)
        except Exception as error:
            return Eager(call, error=error)
    drawn = not all(map(torch.equal, before, _generators()))
    return Eager(call, result, random=drawn)


def _generators() -> list[torch.Tensor]:
    """The states of torch's generators, of the CPU and of each GPU in use."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_gpus]


# ---- compiled -------------------------------------------------------------------------------


@cache
def _straight(count: int) -> Callable[..., list[Any]]:
    """A function that makes `count` calls one after another.

    Written out: a break of Dynamo's in a loop or a comprehension would leave all of it to eager.
    """
    lines = [f"    result{at} = functions[{at}](*calls[{at}][0], **calls[{at}][1])" for at in range(count)]
    results = ", ".join(f"result{at}" for at in range(count))
    text = "\n".join(["def straight(functions, calls):", *lines, f"    return [{results}]"])
    space: dict[str, Any] = {}
    exec(compile(text, f"<{count} calls>", "exec"), space)
    return space["straight"]


def compiled(calls: Sequence[Call], overrides: Sequence[str]) -> tuple[list[Any], int]:
    """The results of copies of `calls`, compiled as one function, and how many graphs that took. Raises as they do."""
    return _through_dynamo(calls, lambda module, inputs: torchweld(module, inputs, overrides))


def in_one_graph(calls: Sequence[Call]) -> bool:
    """Whether Dynamo captures `calls` as one graph, which eager then runs."""
    try:
        _, graphs = _through_dynamo(calls, lambda module, inputs: module.forward)
    except Exception:
        return False
    return graphs == 1 and not torch._dynamo.utils.counters["graph_break"]


def _through_dynamo(calls: Sequence[Call], backend: Callable[..., Any]) -> tuple[list[Any], int]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs = 0

    def counting(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        compiled_graph: Callable[..., Any] = backend(module, inputs)
        return compiled_graph

    copies = [call.copied() for call in calls]
    run = torch.compile(_straight(len(calls)), backend=counting, dynamic=False)
    torch.manual_seed(0)
    with torch.no_grad(), _without_limits():
        results = run([copy.function for copy in copies], [(copy.args, copy.kwargs) for copy in copies])
    return results, graphs


@contextmanager
def _without_limits():
    """Dynamo gives up on a function that it has compiled for many kinds of arguments; each of ours is one."""
    with torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=100_000):
        yield


def _judge_group(task: Task, group: Sequence[Eager], found: Found) -> None:
    """Compile `group` together and judge each call; where that fails, each alone."""
    try:
        results, graphs = compiled([entry.call for entry in group], task.overrides)
    except Exception as error:
        if len(group) == 1:
            found.fail(group[0].call, "raises", _described(error))
            return
        before = len(found.failures)
        for entry in group:
            _judge_group(task, [entry], found)
        if len(found.failures) == before:
            found.fail(group[0].call, "raises beside others", _described(error))
        return
    found.graphs += graphs
    for entry, got in zip(group, results, strict=True):
        reasons = _reasons(task, entry, got)
        if reasons and len(group) > 1:
            before = len(found.failures)
            _judge_group(task, [entry], found)
            if len(found.failures) == before:
                found.fail(entry.call, "differs beside others", "; ".join(reasons))
        elif reasons:
            found.fail(entry.call, "differs", "; ".join(reasons))


def _reasons(task: Task, entry: Eager, got: Any) -> list[str]:
    values = not (entry.random or task.uninitialised)
    return differences(
        got, entry.result, lambda: in_float64(entry.call), values, lambda: _perturbed(entry.call), task.unwritten
    )


def in_float64(call: Call, off: float = 0.0) -> Any:
    """What eager gives in float64; whole numbers that become floats become those of float64 too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            return call.copied().widened(off).run()
    finally:
        torch.set_default_dtype(before)


def _perturbed(call: Call) -> list[Any]:
    """What inputs that are off by half a unit in the last place, and by one, give in float64."""
    try:
        return [in_float64(call, off) for off in (0.5, 1.0)]
    except Exception:
        return []


def _judge_refusal(task: Task, entry: Eager, found: Found) -> None:
    """A call that eager refuses has to be refused, by an exception of the same class."""
    assert entry.error is not None
    try:
        compiled([entry.call], task.overrides)
    except Exception as error:
        if not isinstance(error, type(entry.error)) and type(entry.error).__name__ not in str(error):
            found.fail(entry.call, "raises otherwise", f"{_described(error)}; eager: {_described(entry.error)}")
    else:
        found.fail(entry.call, "does not raise", f"eager: {_described(entry.error)}")


def _described(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}"


def print_triton() -> None:
    """From here on, kernels for the CPU are printed in Triton; its interpreter has to be asked for before.

    The program stays one for the CPU; only its kernels are not in C++.
    """
    from stages.codegen import cpp, triton
    from stages.ir.schedule import default_schedule

    cpp.compile_kernels = triton.compile_kernels
    cpp.default = lambda kernel: default_schedule(kernel.rows, kernel.row_size, "cuda")
