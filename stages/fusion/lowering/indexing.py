"""Reads at positions that are themselves loaded: embedding, gather, index, index_select, take.

An index out of range is an error of the kernel (`index.bounded`), as in eager. Writes at loaded positions (scatter,
index_put, index_add) have no lowering: two positions may be written by one, and the rest has to be copied first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stages.fusion.lowering.context import Context
from stages.fusion.lowering.registry import lowers
from stages.fusion.lowering.value import NotFusable, Position, Value, broadcast_at, dimension, numel
from stages.ir.dtype import DType
from stages.ir.expr import Expr, cast, op, select
from stages.ir.index import bounded, bounds, delinearize, number


def from_either_end(index: Expr, size: int) -> Expr:
    """A loaded index as Python reads it: negative ones count from the end."""
    return bounded(cast(index, DType.INT64), size)


def from_the_front(index: Expr, size: int) -> Expr:
    """A loaded index for which negative numbers are out of range, too."""
    index = cast(index, DType.INT64)
    span = bounds(index)
    if span is None or span[0] < 0:
        index = select(op("lt", index, number(0)), number(size), index)
    return bounded(index, size)


def _check_index(*indices: Value) -> None:
    for index in indices:
        if index.dtype in (torch.bool, torch.uint8):
            raise NotFusable("it selects by a mask: the shape of the result depends on data")


@lowers("embedding")
def embedding(
    context: Context,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """weight[indices]: shape (*indices.shape, width). The other arguments matter to gradients only."""

    def at(position: Position) -> Expr:
        row = from_the_front(indices.at(position[: indices.ndim]), weight.shape[0])
        return weight.at((row, *position[indices.ndim :]))

    return context.result(at)


@lowers("index_select")
def index_select(context: Context, x: Value, dim: int, index: Value) -> Value:
    """`x` at the positions `index` (0-dim or 1-dim) of `dim`."""
    dim = dimension(dim, x.ndim)

    def at(position: Position) -> Expr:
        if not x.ndim:
            return x.at(())
        place = from_the_front(index.at((position[dim],) if index.ndim else ()), x.shape[dim])
        return x.at((*position[:dim], place, *position[dim + 1 :]))

    return context.result(at)


@lowers("gather")
def gather(context: Context, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """x[.., index[position], ..]: `dim` by the index, the other dimensions by the position."""
    dim = dimension(dim, x.ndim)

    def at(position: Position) -> Expr:
        place = from_the_front(index.at(position), x.shape[dim] if x.ndim else 1)
        return x.at((*position[:dim], place, *position[dim + 1 :])) if x.ndim else x.at(())

    return context.result(at)


@lowers("take")
def take(context: Context, x: Value, index: Value) -> Value:
    """`x` at row-major numbers."""

    def at(position: Position) -> Expr:
        return x.at(delinearize(from_either_end(index.at(position), x.numel), x.shape))

    return context.result(at)


@lowers("index.Tensor _unsafe_index.Tensor")
def index(context: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    """Advanced indexing: index tensors broadcast together; their dimensions stand where the first of them stood if
    they are neighbours, else in front. None takes a whole dimension."""
    given = [(dim, entry) for dim, entry in enumerate(indices) if entry is not None]
    _check_index(*(entry for _, entry in given))
    shape = torch.broadcast_shapes(*(entry.shape for _, entry in given))
    dims = [dim for dim, _ in given]
    neighbours = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if neighbours else 0

    def at(position: Position) -> Expr:
        looked_up = position[first : first + len(shape)]
        rest = iter((*position[:first], *position[first + len(shape) :]))
        places = {dim: from_either_end(broadcast_at(entry, looked_up), x.shape[dim]) for dim, entry in given}
        return x.at(tuple(places[dim] if dim in places else next(rest) for dim in range(x.ndim)))

    if not numel(x.shape):
        raise NotFusable("it indexes an empty tensor")
    return context.result(at)
