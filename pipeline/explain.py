"""What the compiler did and did not do, in words: `fast.explain()` and the run's `explain.txt`.

Comes in: compiled units. Goes out: text. What was fused, what was not and why is the fusion stage's to say; what every
graph has beside that is said here: its notes, its arena, the schedule of each kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.stages import service

if TYPE_CHECKING:
    from pipeline.compile import Unit


def explain(units: Sequence[Unit]) -> str:
    """The text for all `units`, in the order of their graphs."""
    return "\n".join(line for unit in units for line in _unit(unit, len(units))) + "\n"


def _unit(unit: Unit, count: int) -> Iterator[str]:
    program = unit.program
    if count > 1:
        yield f"graph {unit.number + 1} of {count}"
    if program is None:
        yield "not compiled"
        return
    yield str(service("explain")(program)).rstrip("\n")
    own = [note for note in unit.graph.notes if note not in program.notes]
    if own:
        yield from ("", "notes of the graph", *(f"  {note}" for note in own))
    if program.plan is not None:
        plan = program.plan
        yield from ("", f"arena ({plan.strategy})")
        for what, size in (("size", plan.size), ("lower bound", plan.lower_bound), ("without sharing", plan.unshared)):
            yield f"  {what:<16} {size / 2**20:10.2f} MiB"
    schedules = {launch.kernel.hash: launch for launch in program.launches}
    if schedules:
        yield from ("", "schedules")
    for launch in schedules.values():
        chosen = launch.schedule.text() if launch.schedule is not None else "default"
        yield f"  {launch.kernel.name} {launch.kernel.hash}: {chosen}"
