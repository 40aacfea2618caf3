"""Operators that only move elements but give new memory: concatenation, padding, rolling, repeating.

Where several sources meet, each is read only where it is meant (`guarded`), so nothing is read out of range.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stages.fusion.lowering.context import Context
from stages.fusion.lowering.registry import lowers
from stages.fusion.lowering.value import (
    NotFusable,
    Position,
    Value,
    dimension,
    dimensions,
    every,
    guarded,
    literal,
    within,
)
from stages.fusion.lowering.views import permuted, reshaped, stepped
from stages.ir.expr import Expr, Number, cast, op, select
from stages.ir.index import add, floordiv, mod, mul, number

# Each part is a select over the ones before it; beyond this, one kernel a part, storing at its offset, is better.
MAX_PARTS = 8


@lowers("cat")
def cat(context: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Tensors one after another along `dim`, promoted to one dtype; empty 1-dim ones are skipped as torch does."""
    parts = [part for part in tensors if part.shape != (0,)]
    if not parts:
        raise NotFusable("it concatenates empty tensors")
    return _joined(context, parts, dimension(dim, parts[0].ndim))


@lowers("stack")
def stack(context: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    dim = dimension(dim, tensors[0].ndim + 1)
    rows = [reshaped(part, (*part.shape[:dim], 1, *part.shape[dim:])) for part in tensors]
    return _joined(context, rows, dim)


def _joined(context: Context, parts: Sequence[Value], dim: int) -> Value:
    parts = [part for part in parts if part.shape[dim]]
    if len(parts) > MAX_PARTS:
        raise NotFusable(f"it joins {len(parts)} tensors, more than {MAX_PARTS}")
    kind = literal(0, context.output().dtype).dtype

    def at(position: Position) -> Expr:
        result: Expr | None = None
        end = sum(part.shape[dim] for part in parts)
        for part in reversed(parts):
            start = end - part.shape[dim]
            inside = within(position[dim], start, end)
            source = (*position[:dim], add(position[dim], -start), *position[dim + 1 :])
            element = cast(guarded(part.at(source), inside), kind)
            # Parts come from the back, so that "before the end" is the whole test.
            before = every(within(position[dim], 0, end)) if result is not None else None
            result = element if result is None or before is None else select(before, element, result)
            end = start
        assert result is not None
        return result

    return context.result(at)


@lowers("constant_pad_nd")
def constant_pad_nd(context: Context, x: Value, pad: Sequence[int], filler: Number = 0) -> Value:
    """`filler` around `x`; `pad` has (before, after) of each dimension from the last on, negative ones crop."""
    before = [0] * x.ndim
    for count, size in enumerate(pad[::2]):
        before[x.ndim - 1 - count] = size
    outside = literal(filler, x.dtype)

    def at(position: Position) -> Expr:
        source = tuple(add(index, -size) for index, size in zip(position, before, strict=True))
        inside = [test for index, size in zip(source, x.shape, strict=True) for test in within(index, 0, size)]
        return select(every(inside), guarded(x.at(source), inside), outside)

    return context.result(at)


@lowers("slice_scatter")
def slice_scatter(
    context: Context,
    x: Value,
    source: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """`x` with a slice of it replaced by `source`."""
    dim = dimension(dim, x.ndim)
    first, _, _ = slice(start, end, step).indices(x.shape[dim])

    def at(position: Position) -> Expr:
        shifted = add(position[dim], -first)
        inside = within(shifted, 0, (source.shape[dim] - 1) * step + 1)
        if step > 1:
            inside.append(op("eq", mod(shifted, step), number(0)))
        place = (*position[:dim], floordiv(shifted, step), *position[dim + 1 :])
        new = cast(guarded(source.at(place), inside), literal(0, x.dtype).dtype)
        return select(every(inside), new, x.at(position))

    return x if not source.numel else context.result(at)


@lowers("select_scatter")
def select_scatter(context: Context, x: Value, source: Value, dim: int, index: int) -> Value:
    """`x` with one position of `dim` replaced by `source`."""
    dim = dimension(dim, x.ndim)
    index %= x.shape[dim]

    def at(position: Position) -> Expr:
        place = (*position[:dim], *position[dim + 1 :])
        new = cast(source.at(place), literal(0, x.dtype).dtype)
        return select(every(within(position[dim], index, index + 1)), new, x.at(position))

    return context.result(at)


# ---- one source -----------------------------------------------------------------------------


@lowers("flip")
def flip(context: Context, x: Value, dims: Sequence[int]) -> Value:
    """`dims` backwards."""
    for dim in dimensions(dims, x.ndim, empty_is_all=False):
        x = stepped(x, dim, x.shape[dim] - 1, -1, x.shape[dim])
    return x


@lowers("rot90")
def rot90(context: Context, x: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Value:
    """`k` quarter turns in the plane of two dimensions, from the first towards the second."""
    first, second = (dimension(dim, x.ndim) for dim in dims)
    for _ in range(k % 4):
        order = list(range(x.ndim))
        order[first], order[second] = second, first
        x = permuted(stepped(x, second, x.shape[second] - 1, -1, x.shape[second]), order)
    return x


@lowers("roll")
def roll(context: Context, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """Positions moved round; without `dims`, in the row-major order of all elements."""
    if not dims:
        return reshaped(_rolled(reshaped(x, (x.numel,)), 0, shifts[0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(x, dimension(dim, x.ndim), shift) if x.ndim else x
    return x


def _rolled(x: Value, dim: int, shift: int) -> Value:
    size = x.shape[dim]

    def at(position: Position) -> Expr:
        moved = mod(add(position[dim], -shift % size), size)
        return x.at((*position[:dim], moved, *position[dim + 1 :]))

    return Value(x.shape, x.dtype, at)


@lowers("repeat")
def repeat(context: Context, x: Value, repeats: Sequence[int]) -> Value:
    """`x` laid out `repeats` times along each dimension, new dimensions in front."""

    def at(position: Position) -> Expr:
        aligned = position[len(position) - x.ndim :]
        return x.at(tuple(mod(index, size) for index, size in zip(aligned, x.shape, strict=True)))

    return context.result(at)


@lowers("pixel_shuffle")
def pixel_shuffle(context: Context, x: Value, factor: int) -> Value:
    """(*, C*r*r, H, W) to (*, C, H*r, W*r)."""
    *batch, channels, height, width = x.shape
    split = reshaped(x, (*batch, channels // factor**2, factor, factor, height, width))
    n = len(batch)
    moved = permuted(split, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return reshaped(moved, tuple(context.output().shape))


@lowers("pixel_unshuffle")
def pixel_unshuffle(context: Context, x: Value, factor: int) -> Value:
    """(*, C, H*r, W*r) to (*, C*r*r, H, W)."""
    *batch, channels, height, width = x.shape
    split = reshaped(x, (*batch, channels, height // factor, factor, width // factor, factor))
    n = len(batch)
    moved = permuted(split, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return reshaped(moved, tuple(context.output().shape))


@lowers("channel_shuffle native_channel_shuffle")
def channel_shuffle(context: Context, x: Value, groups: int) -> Value:
    """Channels of each group taken in turn."""
    batch, channels, *space = x.shape
    split = reshaped(x, (batch, groups, channels // groups, *space))
    return reshaped(permuted(split, (0, 2, 1, *range(3, 3 + len(space)))), x.shape)


@lowers("upsample_nearest1d upsample_nearest2d upsample_nearest3d")
def upsample_nearest(context: Context, x: Value, output_size: Sequence[int], *scales: float | None) -> Value:
    """Each element repeated: where an extent grows by a whole factor that torch's float arithmetic also finds."""
    fake = context.output()
    factors = []
    for size, grown, scale in zip(x.shape[2:], fake.shape[2:], (*scales, *[None] * 3)):
        factors.append(_whole_factor(size, int(grown), scale))

    def at(position: Position) -> Expr:
        return x.at((*position[:2], *(floordiv(index, factor) for index, factor in zip(position[2:], factors))))

    return context.result(at)


def _whole_factor(size: int, grown: int, scale: float | None) -> int:
    """grown / size, if the index that ATen computes in float32 is `index // factor` at every place."""
    step = torch.tensor(1 / scale if scale else size / grown, dtype=torch.float32, device="cpu")
    places = torch.arange(grown, device="cpu")
    found = (places * step).floor().long().clamp(max=size - 1)
    if grown % size or not torch.equal(found, places // (grown // size)):
        raise NotFusable(f"it resizes {size} to {grown}, no whole factor")
    return grown // size


@lowers("tril")
def tril(context: Context, x: Value, diagonal: int = 0) -> Value:
    """The lower triangle of the last two dimensions, 0 elsewhere."""
    return _triangle(context, x, "le", diagonal)


@lowers("triu")
def triu(context: Context, x: Value, diagonal: int = 0) -> Value:
    """The upper triangle of the last two dimensions, 0 elsewhere."""
    return _triangle(context, x, "ge", diagonal)


def _triangle(context: Context, x: Value, test: str, diagonal: int) -> Value:
    zero = literal(0, x.dtype)

    def at(position: Position) -> Expr:
        beyond = add(position[-1], mul(position[-2], -1))
        return select(op(test, beyond, number(diagonal)), x.at(position), zero)

    return context.result(at)
