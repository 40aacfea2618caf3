"""Tensors made from nothing but their shape and numbers."""

from __future__ import annotations

import math
from typing import Any

from stages.fusion.lowering.context import Context
from stages.fusion.lowering.registry import lowers
from stages.fusion.lowering.value import Position, Value, compute_type, literal
from stages.ir.dtype import DType
from stages.ir.expr import Expr, Number, cast, const, op
from stages.ir.index import add, mul


def filled(context: Context, filler: Number) -> Value:
    """Every element `filler`; shape and dtype are the graph's."""
    element = literal(filler, context.output().dtype)
    return context.result(lambda position: element)


@lowers("full", creates=True)
def full(context: Context, size: object, filler: Number, **options: Any) -> Value:
    return filled(context, filler)


@lowers("full_like new_full", creates=True)
def full_like(context: Context, x: object, *size_and_filler: Any, **options: Any) -> Value:
    return filled(context, size_and_filler[-1])


@lowers("zeros zeros_like new_zeros", creates=True)
def zeros(context: Context, *_: object, **options: Any) -> Value:
    return filled(context, 0)


@lowers("ones ones_like new_ones", creates=True)
def ones(context: Context, *_: object, **options: Any) -> Value:
    return filled(context, 1)


@lowers("empty.memory_format empty_like new_empty empty_strided new_empty_strided", creates=True)
def empty(context: Context, *_: object, **options: Any) -> Value:
    """Memory nobody has written may hold anything; 0 is as good."""
    return filled(context, 0)


@lowers("scalar_tensor", creates=True)
def scalar_tensor(context: Context, filler: Number, **options: Any) -> Value:
    return filled(context, filler)


@lowers("arange", creates=True)
def arange(context: Context, end: Number, **options: Any) -> Value:
    return _counted(context, 0, 1)


@lowers("arange.start", creates=True)
def arange_start(context: Context, start: Number, end: Number, **options: Any) -> Value:
    return _counted(context, start, 1)


@lowers("arange.start_step", creates=True)
def arange_step(context: Context, start: Number, end: Number, step: Number = 1, **options: Any) -> Value:
    return _counted(context, start, step)


def _counted(context: Context, start: Number, step: Number) -> Value:
    """start + i * step: index arithmetic for whole numbers, else in the type ATen accumulates in (float64 on the CPU
    for float64 and float32 alike, see RangeFactories.cpp)."""
    kind = compute_type(context.output().dtype)

    def at(position: Position) -> Expr:
        if not kind.is_float:
            return cast(add(mul(position[0], int(step)), int(start)), kind)
        steps = cast(position[0], DType.FLOAT64)
        return op("add", const(start, DType.FLOAT64), op("mul", steps, const(step, DType.FLOAT64)))

    def plain(position: Position) -> Expr:
        """Whole floats below 2**24 are exact in float32: no double arithmetic is needed."""
        return cast(add(mul(position[0], int(step)), int(start)), kind)

    reach = abs(start) + abs(step) * math.prod(context.output().shape)
    whole = float(start).is_integer() and float(step).is_integer() and reach < 1 << 24
    return context.result(plain if whole else at)


@lowers("eye eye.m", creates=True)
def eye(context: Context, *_: object, **options: Any) -> Value:
    """1 on the diagonal."""
    kind = compute_type(context.output().dtype)
    return context.result(lambda position: cast(op("eq", position[0], position[1]), kind))
