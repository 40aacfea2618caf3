"""Which buffers of a program may lie at one address although their lives meet: an output over an input.

Comes in: a program and its live ranges. Goes out: groups of buffers, each of which is one allocation of the arena; and
the program with its kernels writing over results of torch's operators, which are no part of the arena.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from stages.buffers.live_ranges import LiveRange, live_ranges
from stages.ir.kernel import in_place
from stages.ir.program import Extern, Launch, Program

# Operators whose result is memory of its own and large. Torch holds others to that by custom alone: some return their
# argument as it is where there is nothing to do (`native_dropout` outside of training).
OWN_MEMORY = frozenset(
    {
        *("aten::convolution", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation"),
        *("aten::cudnn_convolution_relu", "aten::cudnn_convolution_add_relu"),
        *("mkldnn::_convolution_pointwise", "mkldnn::_convolution_pointwise.binary"),
        *("mkldnn::_linear_pointwise", "mkldnn::_linear_pointwise.binary", "mkl::_mkl_linear"),
    }
)


def share_in_place(program: Program, ranges: dict[str, LiveRange]) -> list[tuple[str, ...]]:
    """The buffers of `ranges` in groups, each in order of life; a buffer that shares with none is its own group."""
    group: dict[str, list[str]] = {name: [name] for name in ranges}
    for source, target in _joins(program, ranges, lambda source, target: True):
        group[source].append(target)
        group[target] = group[source]
    return [tuple(members) for name, members in group.items() if members[0] == name]


def over_results(program: Program) -> Program:
    """`program` with arena buffers moved into the memory of an operator's result that the kernel before them read last.

    The memory of a convolution's result has just been written: a kernel that goes over it again where it lies finds it
    in the cache, and needs no place in the arena for what it makes of it.
    """
    ranges = live_ranges(program, ("arena", "extern"))
    makers = [name for step in program.externs if not step.out and _own_memory(step) for name in step.writes]
    root = {name: name for name in makers if program.buffers[name].role == "extern"}
    writers = Counter(name for step in program.steps for name in step.writes)

    def wanted(source: str, target: str) -> bool:
        old, new = program.buffers[source], program.buffers[target]
        once = writers[source] == writers[target] == 1
        return source in root and new.role == "arena" and old.dtype == new.dtype and once

    buffers = dict(program.buffers)
    for source, target in _joins(program, ranges, wanted):
        root[target] = root[source]
        buffers[target] = replace(buffers[target], role="extern", over=root[source])
    return replace(program, buffers=buffers)


def _own_memory(step: Extern) -> bool:
    target = step.target
    return isinstance(target, torch._ops.OpOverload) and target.name() in OWN_MEMORY


def _joins(
    program: Program, ranges: Mapping[str, LiveRange], wanted: Callable[[str, str], bool]
) -> Iterator[tuple[str, str]]:
    """Pairs (input, output) that may be one memory, each buffer at most once as an input and as an output.

    A launch's output joins the group of an input where the kernel reads that input only at the position that it
    writes (`ir.kernel.in_place`), the input's life ends and the output's begins with that launch, no other parameter
    of the launch is either of the two, and both have one size, so that neither holds memory the other has no use for.
    """
    for number, step in enumerate(program.steps):
        if not isinstance(step, Launch):
            continue
        formals = dict(zip(step.kernel.buffers, step.buffers, strict=True))
        pairs = {(formals[source], formals[target]) for source, target in in_place(step.kernel)}
        taken: set[str] = set()
        # In the order of the kernel's parameters, so that the plan is the same in every process.
        for target in step.writes:
            for source in step.reads:
                if (source, target) not in pairs or source in taken or not wanted(source, target):
                    continue
                if _may_join(step, number, ranges.get(source), ranges.get(target), source, target):
                    taken.add(source)
                    yield source, target
                    break


def _may_join(
    step: Launch, number: int, source: LiveRange | None, target: LiveRange | None, source_name: str, target_name: str
) -> bool:
    if source is None or target is None or source.nbytes != target.nbytes:
        return False
    alone = step.buffers.count(source_name) == 1 and step.buffers.count(target_name) == 1
    return alone and source.last == number and target.first == number
