"""Views: a position of the result as a position of the source. They cost nothing and leave no node in the IR.

These run where the source is computed in the same kernel; a view of memory is loaded by its own strides and never gets
here (`Context.outside`). View operators without an entry go through `Context.strided`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stages.fusion.lowering.context import Context
from stages.fusion.lowering.registry import lowers
from stages.fusion.lowering.value import Position, Value, dimension, value
from stages.ir.index import add, contiguous_strides, delinearize, linearize, mul, number

Source = Callable[[Position], Position]


def viewed(x: Value, shape: Sequence[int], source: Source) -> Value:
    """A value of `shape` whose element at a position is that of `x` at `source(position)`."""
    return value(shape, x.dtype, lambda position: x.at(source(position)))


def reshaped(x: Value, shape: Sequence[int]) -> Value:
    """`x` in another shape, in row-major order."""
    strides = contiguous_strides(tuple(shape))
    return viewed(x, shape, lambda position: delinearize(linearize(position, strides), x.shape))


def permuted(x: Value, dims: Sequence[int]) -> Value:
    """Dimension number i of the result is dimension dims[i] of `x`."""
    places = [dimension(dim, x.ndim) for dim in dims]
    back = sorted(range(len(places)), key=lambda i: places[i])
    return viewed(x, [x.shape[dim] for dim in places], lambda position: tuple(position[i] for i in back))


def stepped(x: Value, dim: int, start: int, step: int, size: int) -> Value:
    """`size` elements along `dim`, from `start`, `step` apart (which may be negative)."""
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    return viewed(x, shape, lambda p: (*p[:dim], add(mul(p[dim], step), start), *p[dim + 1 :]))


def selected(x: Value, dim: int, index: int) -> Value:
    """`x` at `index` of `dim`, which vanishes."""
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return viewed(x, shape, lambda p: (*p[:dim], number(index), *p[dim:]))


# ---- shapes -------------------------------------------------------------------------------


@lowers("view _unsafe_view reshape squeeze squeeze.dim squeeze.dims unsqueeze view_copy")
def reshape(context: Context, x: Value, *_: object) -> Value:
    """Any change of shape that keeps the row-major order; the shape is the graph's."""
    return reshaped(x, tuple(context.output().shape))


@lowers("alias detach")
def alias(context: Context, x: Value) -> Value:
    return x


@lowers("expand")
def expand(context: Context, x: Value, size: Sequence[int], implicit: bool = False) -> Value:
    """Dimensions of one position repeated, and new ones in front."""
    shape = tuple(context.output().shape)

    def source(position: Position) -> Position:
        aligned = position[len(shape) - x.ndim :]
        return tuple(number(0) if size == 1 else at for at, size in zip(aligned, x.shape, strict=True))

    return viewed(x, shape, source)


# ---- order of dimensions --------------------------------------------------------------------


@lowers("permute")
def permute(context: Context, x: Value, dims: Sequence[int]) -> Value:
    return permuted(x, dims)


@lowers("transpose.int")
def transpose(context: Context, x: Value, first: int, second: int) -> Value:
    dims = list(range(x.ndim))
    if dims:
        first, second = dimension(first, x.ndim), dimension(second, x.ndim)
        dims[first], dims[second] = dims[second], dims[first]
    return permuted(x, dims)


@lowers("t numpy_T")
def reverse_dims(context: Context, x: Value) -> Value:
    return permuted(x, list(reversed(range(x.ndim))))


# ---- parts --------------------------------------------------------------------------------


@lowers("slice.Tensor")
def slice_(
    context: Context, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    """Every `step`-th position of `dim`; the bounds are clamped as Python's are."""
    dim = dimension(dim, x.ndim)
    first, _, _ = slice(start, end, step).indices(x.shape[dim])
    return stepped(x, dim, first, step, int(context.output().shape[dim]))


@lowers("select.int")
def select_(context: Context, x: Value, dim: int, index: int) -> Value:
    dim = dimension(dim, x.ndim)
    return selected(x, dim, index % x.shape[dim])


@lowers("split.Tensor split_with_sizes")
def split(context: Context, x: Value, sizes: object, dim: int = 0) -> tuple[Value, ...]:
    """Consecutive pieces of `dim`, of the graph's sizes."""
    return _pieces(context, x, dim)


@lowers("chunk unsafe_split.Tensor")
def chunk(context: Context, x: Value, count: object, dim: int = 0) -> tuple[Value, ...]:
    return _pieces(context, x, dim)


def _pieces(context: Context, x: Value, dim: int) -> tuple[Value, ...]:
    dim = dimension(dim, x.ndim)
    pieces, start = [], 0
    for position in range(len(context.node.meta["val"])):
        size = int(context.output(position).shape[dim])
        pieces.append(stepped(x, dim, start, 1, size))
        start += size
    return tuple(pieces)


@lowers("unbind.int")
def unbind(context: Context, x: Value, dim: int = 0) -> tuple[Value, ...]:
    dim = dimension(dim, x.ndim)
    return tuple(selected(x, dim, index) for index in range(x.shape[dim]))


@lowers("diagonal")
def diagonal(context: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The elements at [i, i + offset] of two dimensions, as a new last dimension."""
    row, column = dimension(dim1, x.ndim), dimension(dim2, x.ndim)
    rest = [dim for dim in range(x.ndim) if dim not in (row, column)]

    def source(position: Position) -> Position:
        places = dict(zip(rest, position))
        places[row], places[column] = add(position[-1], max(-offset, 0)), add(position[-1], max(offset, 0))
        return tuple(places[dim] for dim in range(x.ndim))

    return viewed(x, tuple(context.output().shape), source)


@lowers("unfold")
def unfold(context: Context, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of `size`, `step` apart, along `dim`; the place in the window is a new last dimension."""
    dim = dimension(dim, x.ndim)

    def source(position: Position) -> Position:
        return (*position[:dim], add(mul(position[dim], step), position[-1]), *position[dim + 1 : -1])

    shape = tuple(context.output().shape)
    return viewed(x, shape, source) if x.ndim else viewed(x, shape, lambda position: ())
