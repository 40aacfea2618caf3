"""Which buffers of a program may lie at one address although their lives meet: an output over an input.

Comes in: a program and its live ranges. Goes out: groups of buffers; each group is one allocation.
"""

from __future__ import annotations

from stages.buffers.live_ranges import LiveRange
from stages.ir.kernel import in_place
from stages.ir.program import Launch, Program


def share_in_place(program: Program, ranges: dict[str, LiveRange]) -> list[tuple[str, ...]]:
    """The buffers of `ranges` in groups, each in order of life; a buffer that shares with none is its own group.

    A launch's output joins the group of an input where the kernel reads that input only at the position that it
    writes (`ir.kernel.in_place`), the input's life ends and the output's begins with that launch, no other parameter
    of the launch is either of the two, and both have one size, so that neither holds memory the other has no use for.
    """
    group: dict[str, list[str]] = {name: [name] for name in ranges}
    for number, step in enumerate(program.steps):
        if not isinstance(step, Launch):
            continue
        formals = dict(zip(step.kernel.buffers, step.buffers, strict=True))
        pairs = {(formals[source], formals[target]) for source, target in in_place(step.kernel)}
        taken: set[str] = set()
        # In the order of the kernel's parameters, so that the plan is the same in every process.
        for target in step.writes:
            for source in step.reads:
                if (source, target) not in pairs or source in taken:
                    continue
                if _may_join(step, number, ranges.get(source), ranges.get(target), source, target):
                    taken.add(source)
                    group[source].append(target)
                    group[target] = group[source]
                    break
    return [tuple(members) for name, members in group.items() if members[0] == name]


def _may_join(
    step: Launch, number: int, source: LiveRange | None, target: LiveRange | None, source_name: str, target_name: str
) -> bool:
    if source is None or target is None or source.nbytes != target.nbytes:
        return False
    alone = step.buffers.count(source_name) == 1 and step.buffers.count(target_name) == 1
    return alone and source.last == number and target.first == number
