"""What the compiler did and did not do, in words: `fast.explain()` and the dump's `explain.txt`.

Comes in: compiled units. Goes out: text that lists kernels and library calls, every fusion with its rule, every refusal
with its reason and the user's source line, and device memory traffic before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stages.ir.program import Extern, Program

if TYPE_CHECKING:
    from pipeline.compile import Unit


def explain(units: Sequence[Unit]) -> str:
    """The text for all `units`, in the order of their graphs."""
    return "\n".join(line for unit in units for line in _unit(unit, len(units))) + "\n"


def _unit(unit: Unit, count: int) -> Iterator[str]:
    program = unit.program
    if program is None:
        yield f"graph {unit.number}: not compiled yet"
        return
    head = f"graph {unit.number}: " if count > 1 else ""
    kernels = {launch.kernel.hash for launch in program.launches}
    yield (
        f"{head}{len(program.launches)} launches of {len(kernels)} kernels, {len(program.externs)} library calls "
        f"on {program.device}"
    )
    moved = traffic(program)
    if program.traffic_unfused:
        yield f"memory traffic: {mebibytes(moved)}, with one kernel an operation {mebibytes(program.traffic_unfused)}"
    if program.plan is not None:
        plan = program.plan
        yield (
            f"arena: {mebibytes(plan.size)} ({plan.strategy}), lower bound {mebibytes(plan.lower_bound)}, "
            f"without sharing {mebibytes(plan.unshared)}"
        )
    yield from (f"note: {note}" for note in dict.fromkeys((*unit.graph.notes, *program.notes)))
    yield from _decisions(program)
    yield from _steps(program)


def _decisions(program: Program) -> Iterator[str]:
    for title, fused in (("fused", True), ("not fused", False)):
        decisions = [decision for decision in program.decisions if decision.fused is fused]
        if decisions:
            yield f"\n{title}:"
        for decision in decisions:
            saved = f", saves {mebibytes(decision.bytes_saved)}" if decision.bytes_saved else ""
            rule = f" [{decision.rule}]" if decision.rule else ""
            yield f"  {decision.producer} -> {decision.consumer}{rule}: {decision.reason}{saved}  # {decision.origin}"


def _steps(program: Program) -> Iterator[str]:
    yield "\nsteps:"
    for number, step in enumerate(program.steps):
        origin = f"  # {step.origins[0]}" if step.origins else ""
        if isinstance(step, Extern):
            why = f" ({step.reason})" if step.reason else ""
            yield f"  {number:4d} library {step.label or step.target}{why}{origin}"
        else:
            schedule = step.schedule.text() if step.schedule else "default schedule"
            yield f"  {number:4d} kernel  {step.label or step.kernel.name} {step.kernel.hash} {schedule}{origin}"


def traffic(program: Program) -> int:
    """Bytes that the steps read and write, each buffer counted whole, once for each step that uses it."""
    return sum(program.buffers[name].nbytes for step in program.steps for name in {*step.reads, *step.writes})


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.2f} MiB"
