"""Conversions and copies. A conversion to a half type rounds here and now: later steps of the kernel see it rounded."""

from __future__ import annotations

from typing import Any

import torch

from stages.fusion.lowering.context import Context
from stages.fusion.lowering.registry import lowers, register
from stages.fusion.lowering.value import NotFusable, Position, Value, broadcast_at, rounded, value
from stages.ir.expr import Expr


def converted(context: Context, x: Value) -> Value:
    """`x` in the dtype of the result."""
    dtype = context.output().dtype
    if dtype == x.dtype:
        return x
    return value(x.shape, dtype, lambda position: rounded(x.at(position), dtype))


@lowers("_to_copy")
def to_copy(context: Context, x: Value, **options: Any) -> Value:
    """A copy in another dtype or memory format; one on another device is no kernel (`kinds.why_not`)."""
    return converted(context, x)


@lowers("clone lift_fresh_copy contiguous")
def clone(context: Context, x: Value, **options: Any) -> Value:
    """A copy; its layout is that of the graph's FakeTensor."""
    return x


@lowers("copy")
def copy(context: Context, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """`source`, broadcast and converted to the shape and dtype of `x`."""
    dtype = x.dtype

    def at(position: Position) -> Expr:
        return rounded(broadcast_at(source, position), dtype)

    return context.result(at)


def convert_element_type(context: Context, x: Value, dtype: torch.dtype) -> Value:
    return converted(context, x)


register(torch.ops.prims.convert_element_type.default, convert_element_type)


@lowers("view.dtype")
def view_as_type(context: Context, x: Value, dtype: torch.dtype) -> Value:
    """Bytes read as another type; only where that changes nothing."""
    if dtype != x.dtype:
        raise NotFusable(f"it reads the bytes of {x.dtype} as {dtype}")
    return x
