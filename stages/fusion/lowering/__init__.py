"""What each ATen operator computes, as expressions of the loop IR, and kernels made of sets of graph nodes.

`LOWERINGS` maps an operator to a function from `Value`s to `Value`s; a `Value` is a tensor as a function of position,
so composing operators inlines them. One file a family: `pointwise`, `views`, `copies`, `reductions`, `normalization`,
`indexing`, `creation`, `casts`, `products`. `build_kernel` chooses the iteration space of a set of nodes and stores
their outputs.
"""

from stages.fusion.lowering import (  # noqa: F401  (each enters its operators into the table)
    casts,
    copies,
    creation,
    indexing,
    normalization,
    pointwise,
    products,
    reductions,
    views,
)
from stages.fusion.lowering.kernel import build_kernel
from stages.fusion.lowering.kinds import kind_of, why_not
from stages.fusion.lowering.registry import LOWERINGS, Kind
from stages.fusion.lowering.storage import Base, base_of, extent, is_view
from stages.fusion.lowering.value import NotFusable, Value

__all__ = [
    "LOWERINGS",
    "Base",
    "Kind",
    "NotFusable",
    "Value",
    "base_of",
    "build_kernel",
    "extent",
    "is_view",
    "kind_of",
    "why_not",
]
