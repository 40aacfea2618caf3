"""torch's type promotion: which dtype an elementwise operator computes in, and its operands as expressions of it.

Comes in: `Value`s, Python scalars and None as a lowering gets them. Goes out: expressions of one type. The rules are
torch's own (`torch._prims_common.elementwise_dtypes`): Python scalars and 0-dim tensors only decide where no tensor
with dimensions is of their category.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion
from torch._prims_common import elementwise_dtypes

from stages.fusion.lowering.value import Position, Value, broadcast_at, compute_type, literal
from stages.ir.dtype import DType
from stages.ir.expr import Expr, Number, cast, const

Operand = Value | Number | None

__all__ = ["Operand", "Promotion", "common_dtype", "operand"]


@lru_cache(maxsize=512)
def _example(dtype: torch.dtype, has_dimensions: bool) -> torch.Tensor:
    return torch.empty((1,) if has_dimensions else (), dtype=dtype, device="meta")


def common_dtype(operands: Sequence[Operand], promotion: Promotion = Promotion.DEFAULT) -> torch.dtype:
    """The dtype that all `operands` are converted to; a half type stays one here, though it computes in float32."""
    examples = [
        _example(entry.dtype, entry.ndim > 0) if isinstance(entry, Value) else entry
        for entry in operands
        if entry is not None
    ]
    # ALWAYS_BOOL and NO_OPMATH differ from DEFAULT only in the result, and in whether half types are widened.
    if promotion in (Promotion.DEFAULT, Promotion.ALWAYS_BOOL):
        promotion = Promotion.NO_OPMATH
    _, common = elementwise_dtypes(*examples, type_promotion_kind=promotion)
    return common


def operand(entry: Operand, dtype: torch.dtype, position: Position, exact: bool = False) -> Expr | None:
    """One operand at `position` of the result, in the compute type of `dtype`; None stays None.

    exact   a Python scalar is not rounded to `dtype` first (add, mul, ... of half types take it in float32)
    """
    kind: DType = compute_type(dtype)
    if entry is None:
        return None
    if isinstance(entry, Value):
        return cast(broadcast_at(entry, position), kind)
    return const(entry, kind) if exact else literal(entry, dtype)
