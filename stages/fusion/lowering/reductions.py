"""Reductions: sums, extremes and their positions, products, truth, variance, norms.

Each announces the rows it reduces (`Context.rows`) and is then a function of the row. Half types accumulate in float32,
whole numbers and bools sum in int64, as torch's do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from stages.fusion.lowering.context import Context, Rows
from stages.fusion.lowering.formulas import absolute, like
from stages.fusion.lowering.formulas import power as raised
from stages.fusion.lowering.registry import lowers
from stages.fusion.lowering.value import At, Position, Value, compute_type, dimension
from stages.ir.dtype import DType
from stages.ir.expr import Expr, Number, cast, const, op, select

Dims = int | Sequence[int] | None


def averaged(rows: Rows, at: At) -> At:
    """The mean of each row: its sum over its size."""
    total = rows.reduce("sum", at)

    def mean(row: Position) -> Expr:
        whole = total(row)
        return op("div", whole, like(rows.size, whole))

    return mean


def squared_deviations(rows: Rows, at: At, mean: At) -> At:
    """The sum of the squares of each row's distances to its mean: the second of two passes, as exact as one can."""

    def square(position: Position) -> Expr:
        distance = op("sub", at(position), mean(rows.row_of(position)))
        return op("mul", distance, distance)

    return rows.reduce("sum", square)


# ---- sums and products --------------------------------------------------------------------

# What a sum and a product are in bool, which is the type of a result only where the call asks for it.
_OF_BOOLS = {"sum": "any", "prod": "all"}


def _accumulated(
    context: Context, combine: str, x: Value, dims: Dims, keepdim: bool, empty_is_all: bool = True
) -> Value:
    kind = compute_type(context.output().dtype)
    rows = context.rows(x.shape, dims, empty_is_all)
    combine = _OF_BOOLS[combine] if kind is DType.BOOL else combine
    total = rows.reduce(combine, lambda position: cast(x.at(position), kind))
    return context.result(rows.kept_at(total, keepdim))


@lowers("sum.dim_IntList")
def sum_dims(context: Context, x: Value, dim: Dims, keepdim: bool = False, *, dtype: object = None) -> Value:
    return _accumulated(context, "sum", x, dim, keepdim)


@lowers("sum")
def sum_all(context: Context, x: Value, *, dtype: object = None) -> Value:
    return _accumulated(context, "sum", x, None, False)


@lowers("prod")
def prod_all(context: Context, x: Value, *, dtype: object = None) -> Value:
    return _accumulated(context, "prod", x, None, False)


@lowers("prod.dim_int")
def prod_dim(context: Context, x: Value, dim: int, keepdim: bool = False, *, dtype: object = None) -> Value:
    return _accumulated(context, "prod", x, dim, keepdim)


@lowers("mean")
def mean_all(context: Context, x: Value, *, dtype: object = None) -> Value:
    return mean_dims(context, x, None)


@lowers("mean.dim")
def mean_dims(context: Context, x: Value, dim: Dims, keepdim: bool = False, *, dtype: object = None) -> Value:
    """The sum in the compute type of the result, over the number of elements."""
    kind = compute_type(context.output().dtype)
    rows = context.rows(x.shape, dim)
    return context.result(rows.kept_at(averaged(rows, lambda position: cast(x.at(position), kind)), keepdim))


# ---- truth --------------------------------------------------------------------------------


def _truth(context: Context, combine: str, x: Value, dims: Dims, keepdim: bool) -> Value:
    """Whether any, or all, of a row is not 0; NaN is not 0. Over uint8 the result is uint8, as torch has it."""
    rows = context.rows(x.shape, dims)
    found = rows.reduce(combine, lambda position: cast(x.at(position), DType.BOOL))
    return context.result(rows.kept_at(found, keepdim))


@lowers("any.dim any.dims")
def any_dims(context: Context, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return _truth(context, "any", x, dim, keepdim)


@lowers("any")
def any_all(context: Context, x: Value) -> Value:
    return _truth(context, "any", x, None, False)


@lowers("all.dim all.dims")
def all_dims(context: Context, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return _truth(context, "all", x, dim, keepdim)


@lowers("all")
def all_all(context: Context, x: Value) -> Value:
    return _truth(context, "all", x, None, False)


# ---- extremes -----------------------------------------------------------------------------


def extreme(rows: Rows, combine: str, x: Value) -> At:
    """The largest ("max") or least ("min") of each row; NaN if it has one."""
    if x.dtype is torch.bool:
        return rows.reduce("any" if combine == "max" else "all", x.at)
    return rows.reduce(combine, x.at)


def _position(rows: Rows, combine: str, x: Value) -> At:
    """The place of the first extreme in each row. Bools are ordered as 0 and 1."""
    kind = DType.UINT8 if x.dtype is torch.bool else compute_type(x.dtype)
    return rows.reduce(f"arg{combine}", lambda position: cast(x.at(position), kind))


@lowers("amax")
def amax(context: Context, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    rows = context.rows(x.shape, dim)
    return context.result(rows.kept_at(extreme(rows, "max", x), keepdim))


@lowers("amin")
def amin(context: Context, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    rows = context.rows(x.shape, dim)
    return context.result(rows.kept_at(extreme(rows, "min", x), keepdim))


@lowers("aminmax")
def aminmax(context: Context, x: Value, *, dim: int | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    rows = context.rows(x.shape, dim)
    both = (rows.kept_at(extreme(rows, combine, x), keepdim) for combine in ("min", "max"))
    low, high = both
    return context.result(low), context.result(high, 1)


@lowers("max")
def max_all(context: Context, x: Value) -> Value:
    return amax(context, x)


@lowers("min")
def min_all(context: Context, x: Value) -> Value:
    return amin(context, x)


def _extreme_and_position(context: Context, combine: str, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    rows = context.rows(x.shape, dim, ordered=True)
    best, place = extreme(rows, combine, x), _position(rows, combine, x)
    return context.result(rows.kept_at(best, keepdim)), context.result(rows.kept_at(place, keepdim), 1)


@lowers("max.dim")
def max_dim(context: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _extreme_and_position(context, "max", x, dim, keepdim)


@lowers("min.dim")
def min_dim(context: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _extreme_and_position(context, "min", x, dim, keepdim)


@lowers("argmax")
def argmax(context: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    rows = context.rows(x.shape, dim, ordered=True)
    return context.result(rows.kept_at(_position(rows, "max", x), keepdim))


@lowers("argmin")
def argmin(context: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    rows = context.rows(x.shape, dim, ordered=True)
    return context.result(rows.kept_at(_position(rows, "min", x), keepdim))


# ---- variance -----------------------------------------------------------------------------


def _variance(context: Context, x: Value, dims: Dims, correction: Number | None, keepdim: bool) -> tuple[At, At]:
    """Variance and mean of each row, as functions of the position in the result.

    The divisor is max(0, size - correction): where it is 0 the result is NaN or infinite, as in torch.
    """
    rows = context.rows(x.shape, dims)
    mean = averaged(rows, x.at)
    squares = squared_deviations(rows, x.at, mean)
    divisor = max(0, rows.size - (1 if correction is None else correction))

    def variance(row: Position) -> Expr:
        total = squares(row)
        return op("div", total, like(divisor, total))

    return rows.kept_at(variance, keepdim), rows.kept_at(mean, keepdim)


@lowers("var.correction")
def var(
    context: Context, x: Value, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> Value:
    return context.result(_variance(context, x, dim, correction, keepdim)[0])


@lowers("std.correction")
def std(
    context: Context, x: Value, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> Value:
    variance, _ = _variance(context, x, dim, correction, keepdim)
    return context.result(lambda position: op("sqrt", variance(position)))


@lowers("var_mean.correction")
def var_mean(
    context: Context, x: Value, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, mean = _variance(context, x, dim, correction, keepdim)
    return context.result(variance), context.result(mean, 1)


@lowers("std_mean.correction")
def std_mean(
    context: Context, x: Value, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, mean = _variance(context, x, dim, correction, keepdim)
    return context.result(lambda position: op("sqrt", variance(position))), context.result(mean, 1)


# ---- norms --------------------------------------------------------------------------------


@lowers("linalg_vector_norm")
def vector_norm(
    context: Context, x: Value, order: Number = 2, dim: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> Value:
    """The order-norm of each row; orders 0 (how many are not 0) and plus or minus infinity (extremes) included."""
    kind = compute_type(context.output().dtype)
    rows = context.rows(x.shape, dim)

    def size(position: Position) -> Expr:
        return absolute(cast(x.at(position), kind))

    def powered(position: Position) -> Expr:
        element = size(position)
        if order == 0:
            return cast(op("ne", element, like(0, element)), kind)
        return raised(element, const(order, kind))

    if math.isinf(order):
        return context.result(rows.kept_at(rows.reduce("max" if order > 0 else "min", size), keepdim))
    total = rows.kept_at(rows.reduce("sum", powered), keepdim)
    if order in (0, 1):
        return context.result(total)
    return context.result(lambda position: raised(total(position), const(1 / order, kind)))


@lowers("norm.ScalarOpt_dim")
def norm(context: Context, x: Value, order: Number | None, dim: Dims, keepdim: bool = False) -> Value:
    return vector_norm(context, x, 2 if order is None else order, dim, keepdim)


@lowers("logsumexp")
def logsumexp(context: Context, x: Value, dim: Dims, keepdim: bool = False) -> Value:
    """log(sum(exp(x))) from the largest of the row, which counts as 0 where it is infinite."""
    kind = compute_type(context.output().dtype)
    rows = context.rows(x.shape, dim)

    def element(position: Position) -> Expr:
        return cast(x.at(position), kind)

    largest = rows.reduce("max", element)

    def base(row: Position) -> Expr:
        found = largest(row)
        return select(op("isinf", found), like(0, found), found)

    total = rows.reduce("sum", lambda p: op("exp", op("sub", element(p), base(rows.row_of(p)))))
    return context.result(rows.kept_at(lambda row: op("add", op("log", total(row)), base(row)), keepdim))


@lowers("count_nonzero count_nonzero.dim_IntList")
def count_nonzero(context: Context, x: Value, dim: Dims = None) -> Value:
    rows = context.rows(x.shape, dim)
    return context.result(rows.reduce("sum", lambda p: cast(cast(x.at(p), DType.BOOL), DType.INT64)))


# ---- softmax ------------------------------------------------------------------------------


def _softmax_parts(context: Context, x: Value, dim: int) -> tuple[Rows, At, At, At]:
    """The rows, x minus the largest of its row, the sum of the exponentials of that, and the largest."""
    kind = compute_type(context.output().dtype)
    rows = context.rows(x.shape, dimension(dim, x.ndim))

    def element(position: Position) -> Expr:
        return cast(x.at(position), kind)

    largest = rows.reduce("max", element)

    def shifted(position: Position) -> Expr:
        return op("sub", element(position), largest(rows.row_of(position)))

    return rows, shifted, rows.reduce("sum", lambda position: op("exp", shifted(position))), largest


@lowers("_softmax softmax.int")
def softmax(context: Context, x: Value, dim: int, half_to_float: object = False) -> Value:
    """exp(x) / sum(exp(x)) along `dim`; a row of -inf alone gives NaN."""
    rows, shifted, total, _ = _softmax_parts(context, x, dim)
    return context.result(lambda p: op("div", op("exp", shifted(p)), total(rows.row_of(p))))


@lowers("_safe_softmax")
def safe_softmax(context: Context, x: Value, dim: int, dtype: object = None) -> Value:
    """Softmax that gives 0 for a row of -inf alone."""
    rows, shifted, total, largest = _softmax_parts(context, x, dim)

    def at(position: Position) -> Expr:
        row = rows.row_of(position)
        masked = op("eq", largest(row), like(-math.inf, largest(row)))
        part = op("div", op("exp", shifted(position)), total(row))
        return select(masked, like(0, part), part)

    return context.result(at)


@lowers("_log_softmax log_softmax.int")
def log_softmax(context: Context, x: Value, dim: int, half_to_float: object = False) -> Value:
    """x - log(sum(exp(x))) along `dim`."""
    rows, shifted, total, _ = _softmax_parts(context, x, dim)
    return context.result(lambda p: op("sub", shifted(p), op("log", total(rows.row_of(p)))))
