"""Whether two groups can be one kernel at all. One predicate; its refusals are what `explain` prints."""

from __future__ import annotations

from collections.abc import Collection

from stages.fusion.config import FusionConfig
from stages.fusion.kernels import Built, Refusal
from stages.fusion.partition import Partition


def legal(partition: Partition, first: int, second: int) -> Refusal | None:
    """None if groups `first` and `second` can be one kernel, else why not.

    Three things are asked: nothing outside lies between the two (it would have to run in the middle of the fused
    kernel), the limits on the size of a kernel hold, and lowering makes one kernel of them (the index maps compose, the
    reductions are over the same rows, all stores run over the same loops).
    """
    if (between := partition.between(first, second)) is not None:
        return Refusal(f"{between.label} would have to run between them")
    units = partition.groups[first].units | partition.groups[second].units
    if (refusal := within_limits(partition.config, units, None)) is not None:
        return refusal
    built = partition.joined(first, second)
    return built if isinstance(built, Refusal) else within_limits(partition.config, units, built)


def within_limits(config: FusionConfig, units: Collection[int], built: Built | None) -> Refusal | None:
    """None if a kernel of `units` is no larger than the config allows; what is in it is counted once it is `built`."""
    if len(units) > config.max_ops:
        return Refusal(f"it would hold {len(units)} operations; fusion.max_ops is {config.max_ops}")
    if built is None:
        return None
    if len(built.inputs) > config.max_inputs:
        return Refusal(f"it would read {len(built.inputs)} buffers; fusion.max_inputs is {config.max_inputs}")
    if (count := len(built.kernel.nodes)) > config.max_expressions:
        return Refusal(f"it would compute {count} expressions; fusion.max_expressions is {config.max_expressions}")
    return None
