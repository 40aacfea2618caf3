"""The buffers stage: Program in, the same Program out with a place in one arena for each intermediate."""

from __future__ import annotations

from dataclasses import replace

import torch

from stages.buffers.config import BuffersConfig
from stages.buffers.inplace import over_results, share_in_place
from stages.buffers.live_ranges import LiveRange, live_ranges
from stages.buffers.planners import STRATEGIES, Request, lower_bound, plan_size
from stages.buffers.verify import verify
from stages.ir.program import ArenaPlan, Program


def alignment_of(device: torch.device) -> int:
    """Bytes that offsets in the arena are multiples of: a cache line of a CPU, a texture line of a CUDA device."""
    return 256 if device.type == "cuda" else 64


def run(program: Program, config: BuffersConfig) -> Program:
    """`program` with the offset of each arena buffer that a step uses, and the `ArenaPlan`.

    A kernel's output that can lie over an operator's result leaves the arena, under every strategy but `none`.
    Sizes in the plan (`size`, `lower_bound`, `unshared`) are of buffers rounded up to the alignment. The lower bound
    is that of the allocations after in-place sharing, so it holds for every strategy.
    Raises `IRError` if the plan were not sound.
    """
    alignment = alignment_of(program.device)
    unshared = live_ranges(program)
    alone: list[tuple[str, ...]] = [(name,) for name in unshared]
    if config.strategy != "none":
        program = over_results(program)
    ranges = live_ranges(program)
    shared = share_in_place(program, ranges)
    groups = alone if config.strategy == "none" else shared
    requests = _requests(groups, ranges, alignment)
    plan = STRATEGIES[config.strategy](requests)
    offsets = {name: plan[number] for number, names in enumerate(groups) for name in names}
    result = replace(
        program,
        buffers={name: replace(spec, offset=offsets.get(name)) for name, spec in program.buffers.items()},
        plan=ArenaPlan(
            size=plan_size(requests, plan),
            lower_bound=lower_bound(_requests(shared, ranges, alignment)),
            unshared=sum(request.bytes for request in _requests(alone, unshared, alignment)),
            strategy=config.strategy,
            placements=tuple(
                (name, life.first, life.last, offsets[name], life.nbytes) for name, life in ranges.items()
            ),
        ),
    )
    verify(result, alignment)
    return result


def _requests(groups: list[tuple[str, ...]], ranges: dict[str, LiveRange], alignment: int) -> list[Request]:
    """One request a group of buffers, its id the group's number: alive while any of them is, bytes rounded up."""
    return [
        Request(
            id=number,
            first=min(ranges[name].first for name in names),
            last=max(ranges[name].last for name in names),
            bytes=-(-max(ranges[name].nbytes for name in names) // alignment) * alignment,
        )
        for number, names in enumerate(groups)
    ]
