"""When each intermediate of a program is alive. Comes in: a program. Goes out: a `LiveRange` a buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stages.ir.program import Program, tensor_refs


@dataclass(frozen=True)
class LiveRange:
    """A buffer of `nbytes` bytes that is alive from step `first` to step `last`, both included."""

    first: int
    last: int
    nbytes: int


def live_ranges(program: Program, roles: Collection[str] = ("arena",)) -> dict[str, LiveRange]:
    """The range of each buffer of `roles`, by name, in order of first use; one that no step touches has none.

    It reaches from the first step that touches the buffer to the last, so it covers every time a step writes it
    again. What the program returns stays alive to the end: the runtime copies it out after the last step.
    """
    wanted = {name: spec for name, spec in program.buffers.items() if spec.role in roles}
    first: dict[str, int] = {}
    last: dict[str, int] = {}

    def touch(names: Iterable[str], number: int) -> None:
        for name in names:
            if name in wanted:
                first.setdefault(name, number)
                last[name] = number

    for number, step in enumerate(program.steps):
        touch((*step.reads, *step.writes), number)
    touch([ref.buffer for ref in tensor_refs(program.outputs)], len(program.steps))
    return {name: LiveRange(first[name], last[name], wanted[name].nbytes) for name in first}
