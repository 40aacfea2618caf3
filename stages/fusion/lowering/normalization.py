"""Normalisations over rows (layer, group, RMS) and with fixed statistics (batch norm in evaluation).

All run in the compute type: mean, then the mean of the squared distances to it (two passes, no cancellation), then one
multiplication and addition an element. Weight, bias and statistics may be of another type than the input (mixed
precision): they are converted as they are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from stages.fusion.lowering.context import Context, Rows
from stages.fusion.lowering.formulas import like
from stages.fusion.lowering.reductions import averaged, squared_deviations
from stages.fusion.lowering.registry import lowers
from stages.fusion.lowering.storage import tensor_of
from stages.fusion.lowering.value import At, NotFusable, Position, Value, compute_type
from stages.ir.dtype import DType
from stages.ir.expr import Expr, cast, op
from stages.ir.index import add, floordiv, mul

Affine = Value | None


def _in(kind: DType, x: Value) -> At:
    return lambda position: cast(x.at(position), kind)


def _scaled(kind: DType, element: Expr, where: Position, weight: Affine, bias: Affine) -> Expr:
    """element * weight + bias, each of which may be missing.

    Without a bias 0 is added, as torch does: it makes the +0 that eager gives of a -0 times a negative weight.
    """
    element = _weighted(kind, element, where, weight)
    return op("add", element, like(0, element) if bias is None else cast(bias.at(where), kind))


def _weighted(kind: DType, element: Expr, where: Position, weight: Affine) -> Expr:
    return element if weight is None else op("mul", element, cast(weight.at(where), kind))


def _inverse(mean_square: At, eps: float | None, default: float) -> At:
    """1 / sqrt(mean_square + eps), a function of the row."""

    def at(row: Position) -> Expr:
        spread = mean_square(row)
        return op("rsqrt", op("add", spread, like(default if eps is None else eps, spread)))

    return at


def _moments(rows: Rows, at: At, eps: float) -> tuple[At, At]:
    """Mean and 1 / sqrt(variance + eps) of each row."""
    mean = averaged(rows, at)
    squares = squared_deviations(rows, at, mean)

    def variance(row: Position) -> Expr:
        total = squares(row)
        return op("div", total, like(rows.size, total))

    return mean, _inverse(variance, eps, eps)


@lowers("native_layer_norm")
def layer_norm(
    context: Context, x: Value, shape: Sequence[int], weight: Affine, bias: Affine, eps: float
) -> tuple[Value, Value, Value]:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions; also mean and 1 / deviation."""
    kind = compute_type(x.dtype)
    first = x.ndim - len(shape)
    rows = context.rows(x.shape, range(first, x.ndim))
    mean, inverse = _moments(rows, _in(kind, x), eps)

    def at(position: Position) -> Expr:
        row = rows.row_of(position)
        distance = op("sub", cast(x.at(position), kind), mean(row))
        return _scaled(kind, op("mul", distance, inverse(row)), position[first:], weight, bias)

    return (
        context.result(at),
        context.result(rows.kept_at(mean, True), 1),
        context.result(rows.kept_at(inverse, True), 2),
    )


@lowers("_fused_rms_norm")
def rms_norm(
    context: Context, x: Value, shape: Sequence[int], weight: Affine, eps: float | None
) -> tuple[Value, Value]:
    """x / sqrt(mean(x * x) + eps) * weight over the last dimensions; also the reciprocal root."""
    kind = compute_type(x.dtype)
    first = x.ndim - len(shape)
    rows = context.rows(x.shape, range(first, x.ndim))

    def square(position: Position) -> Expr:
        return op("mul", cast(x.at(position), kind), cast(x.at(position), kind))

    inverse = _inverse(averaged(rows, square), eps, torch.finfo(kind.torch).eps)

    def at(position: Position) -> Expr:
        scaled = op("mul", cast(x.at(position), kind), inverse(rows.row_of(position)))
        return _weighted(kind, scaled, position[first:], weight)

    return context.result(at), context.result(rows.kept_at(inverse, True), 1)


@lowers("native_group_norm")
def group_norm(
    context: Context,
    x: Value,
    weight: Affine,
    bias: Affine,
    batch: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Each group of channels of each sample normalised as one row; weight and bias by the channel."""
    kind = compute_type(x.dtype)
    size = channels // groups
    space = x.shape[2:]
    shape = (batch, groups, size, *space)

    def split(position: Position) -> Position:
        """From (sample, group, channel of the group, place) to (sample, channel, place)."""
        sample, group, channel, *place = position
        return (sample, add(mul(group, size), channel), *place)

    rows = context.rows(shape, range(2, len(shape)), strides=_split_strides(context, size))
    mean, inverse = _moments(rows, lambda position: cast(x.at(split(position)), kind), eps)

    def at(position: Position) -> Expr:
        row = (position[0], floordiv(position[1], size))
        distance = op("sub", cast(x.at(position), kind), mean(row))
        return _scaled(kind, op("mul", distance, inverse(row)), position[1:2], weight, bias)

    return context.result(at), context.result(mean, 1), context.result(inverse, 2)


def _split_strides(context: Context, size: int) -> tuple[int, ...] | None:
    """The strides of the input with its channels split into groups of `size`."""
    source = context.node.args[0]
    fake = tensor_of(source) if isinstance(source, fx.Node) else None
    if fake is None:
        return None
    sample, channel, *space = fake.stride()
    return (sample, channel * size, channel, *space)


@lowers("_native_batch_norm_legit_no_training")
def batch_norm(
    context: Context,
    x: Value,
    weight: Affine,
    bias: Affine,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    """Normalised by the running statistics of each channel; the saved ones are empty in evaluation."""
    kind = compute_type(x.dtype)

    def at(position: Position) -> Expr:
        channel = position[1:2]
        spread = cast(variance.at(channel), kind)
        inverse = op("div", like(1, spread), op("sqrt", op("add", spread, like(eps, spread))))
        distance = op("sub", cast(x.at(position), kind), cast(mean.at(channel), kind))
        return _scaled(kind, op("mul", distance, inverse), channel, weight, bias)

    return context.result(at), None, None


@lowers("_native_batch_norm_legit.no_stats")
def batch_statistics_norm(
    context: Context, x: Value, weight: Affine, bias: Affine, training: bool, momentum: float, eps: float
) -> tuple[Value, Value, Value]:
    """Each channel normalised by its own mean and variance over batch and space (instance norm comes to this)."""
    kind = compute_type(x.dtype)
    rows = context.rows(x.shape, [dim for dim in range(x.ndim) if dim != 1])
    mean, inverse = _moments(rows, _in(kind, x), eps)

    def at(position: Position) -> Expr:
        channel = rows.row_of(position)
        distance = op("sub", cast(x.at(position), kind), mean(channel))
        return _scaled(kind, op("mul", distance, inverse(channel)), channel, weight, bias)

    return context.result(at), context.result(mean, 1), context.result(inverse, 2)


@lowers("native_batch_norm cudnn_batch_norm")
def batch_norm_of(
    context: Context,
    x: Value,
    weight: Affine,
    bias: Affine,
    mean: Value | None,
    variance: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    """Batch norm by its arguments; with running statistics to update it is no kernel."""
    if mean is None or variance is None:
        return batch_statistics_norm(context, x, weight, bias, training, momentum, eps)
    if training:
        raise NotFusable("it updates the running statistics of its batch norm")
    return batch_norm(context, x, weight, bias, mean, variance, momentum, eps)
