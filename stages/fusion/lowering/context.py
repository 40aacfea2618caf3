"""What a lowering is called with: the node it lowers, its operands as values, loads of outside tensors, and the row.

One `Context` lives for the building of one kernel. Lowering runs in two steps. First every node of the group becomes a
`Value`, and each reduction announces its iteration (`Context.rows`). Then the kernel's axes are known, the stores ask
the values for their elements, and everything is inlined into them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from stages.fusion.lowering.registry import LOWERINGS
from stages.fusion.lowering.storage import Base, base_of, extent, is_view, tensor_of
from stages.fusion.lowering.value import (
    At,
    NotFusable,
    Position,
    Value,
    compute_type,
    dimensions,
    memoised,
    numel,
    rounded,
    stored_type,
    value,
)
from stages.ir.expr import Axis, Buffer, Expr, cast, free_axes, load, reduce, var
from stages.ir.graph import values_of
from stages.ir.index import contiguous_strides, delinearize, linearize, number


class Context:
    """The state of one kernel in the making."""

    def __init__(self, nodes: Sequence[fx.Node], emulate_precision_casts: bool = False) -> None:
        self.group = frozenset(nodes)
        self.emulate_precision_casts = emulate_precision_casts
        self.values: dict[fx.Node, Any] = {}
        self.loaded: dict[fx.Node, Buffer] = {}
        self.reductions: list[Rows] = []
        self.row: Row | None = None
        self.node: fx.Node = nodes[0]

    # ---- what lowerings ask ---------------------------------------------------------------

    def output(self, position: int = 0) -> Tensor:
        """The FakeTensor of result number `position` of the node being lowered."""
        result = values_of(self.node)[position]
        if not isinstance(result, Tensor):
            raise NotFusable(f"{self.node.name} gives no tensor")
        return result

    def result(self, at: At, position: int = 0) -> Value:
        """The value of result number `position`: shape and dtype as the graph says, elements from `at`.

        `at` may give an element in any type; it is converted to the compute type of the dtype.
        """
        fake = self.output(position)
        kind = compute_type(fake.dtype)
        return value(tuple(fake.shape), fake.dtype, lambda where: cast(at(where), kind))

    def rows(
        self,
        shape: Sequence[int],
        dims: int | Sequence[int] | None,
        empty_is_all: bool = True,
        strides: Sequence[int] | None = None,
        ordered: bool = False,
    ) -> Rows:
        """The iteration of a reduction of a tensor of `shape` over `dims` (None is all of them).

        strides   of what is reduced, for the order of the loop; if left out, those of the node's first operand
        ordered   whether the result counts positions, so that the loop keeps to row-major order
        """
        if strides is None:
            first = self.node.args[0]
            operand = tensor_of(first) if isinstance(first, fx.Node) else None
            if operand is not None and tuple(operand.shape) == tuple(shape):
                strides = operand.stride()
        found = Rows(self, self.node, tuple(shape), dimensions(dims, len(shape), empty_is_all), strides, ordered)
        self.reductions.append(found)
        return found

    # ---- nodes to values --------------------------------------------------------------------

    def lower(self, node: fx.Node) -> Any:
        """The value of `node`: computed here if it is of the group, or a view of what is, else loaded."""
        if node not in self.values:
            self.values[node] = self._computed(node) if self._inside(node) else self.outside(node)
        return self.values[node]

    def _inside(self, node: fx.Node) -> bool:
        if is_view(node) and tensor_of(node) is not None:
            return base_of(node).node in self.group
        return node in self.group or (node.target is operator.getitem and node.args[0] in self.group)

    def _computed(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source, position = node.args
            assert isinstance(source, fx.Node) and isinstance(position, int)
            return self.lower(source)[position]
        operands, named = fx.node.map_arg((node.args, node.kwargs), self.lower)
        before, self.node = self.node, node
        try:
            made = self._call(node, operands, named)
        finally:
            self.node = before
        if not self.emulate_precision_casts or is_view(node):
            return made
        return tuple(map(_rounded_value, made)) if isinstance(made, tuple) else _rounded_value(made)

    def _call(self, node: fx.Node, operands: Any, named: Any) -> Any:
        lowering = LOWERINGS.get(node.target) if isinstance(node.target, OpOverload) else None
        if lowering is not None:
            return lowering(self, *operands, **named)
        if is_view(node) and tensor_of(node) is not None:
            return self.strided(base_of(node))
        raise NotFusable(f"there is no lowering of {node.target}")

    def strided(self, base: Base) -> Value:
        """Any view at all of a value of the group, by its strides: its owner has to be laid out row-major."""
        owner = self.lower(base.node)
        start = tensor_of(base.node)
        assert start is not None
        reach = base.offset + extent(base.shape, base.strides)
        if not start.is_contiguous() or base.offset < 0 or reach > owner.numel:
            raise NotFusable(f"{self.node.name} is a strided view of {base.node.name}, which is not laid out row-major")

        def at(position: Position) -> Expr:
            return owner.at(delinearize(linearize(position, base.strides, base.offset), owner.shape))

        return value(base.shape, owner.dtype, at)

    # ---- memory -----------------------------------------------------------------------------

    def outside(self, node: fx.Node) -> Any:
        """The value of a node that another step computes: loads from its owner's memory, by its own strides."""
        fakes = values_of(node)
        if tensor_of(node) is None:
            if fakes and all(isinstance(fake, Tensor) for fake in fakes):
                return tuple(None for _ in fakes)  # several tensors: read through their getitem nodes
            raise NotFusable(f"{node.name} is no tensor but a number known only when the program runs")
        base = base_of(node)
        owner = tensor_of(base.node)
        assert owner is not None
        size = extent(tuple(owner.shape), owner.stride())
        if base.offset < 0 or base.offset + extent(base.shape, base.strides) > size:
            raise NotFusable(f"{node.name} reaches beyond the memory of {base.node.name}")
        kind = stored_type(owner.dtype)

        def at(position: Position) -> Expr:
            index = linearize(position, base.strides, base.offset)
            return cast(load(self.buffer(base.node, size), index), kind.compute)

        return value(base.shape, owner.dtype, at)

    def buffer(self, owner: fx.Node, size: int) -> Buffer:
        """The formal parameter that `owner` is read through: `in0`, `in1`, ... in order of first use."""
        if owner not in self.loaded:
            tensor = tensor_of(owner)
            assert tensor is not None
            self.loaded[owner] = Buffer(f"in{len(self.loaded)}", stored_type(tensor.dtype), size)
        return self.loaded[owner]


def _rounded_value(made: Value | None) -> Value | None:
    if made is None or made.dtype not in (torch.float16, torch.bfloat16):
        return made
    at, dtype = made.at, made.dtype
    return value(made.shape, dtype, lambda position: rounded(at(position), dtype))


class Row:
    """The row of a kernel: the inner axis, and where it stands in the reduced dimensions of the anchor.

    `sizes` are the anchor's reduced extents and `order` the order, outermost first, in which the axis walks them, so
    that memory is read in the order in which it lies.
    """

    def __init__(self, anchor: Rows, order: Sequence[int] | None = None) -> None:
        self.sizes = anchor.reduced_shape
        self.order = tuple(range(len(self.sizes)) if order is None else order)
        self.axis = Axis("r0", numel(self.sizes))
        walked = delinearize(var(self.axis), [self.sizes[dim] for dim in self.order]) if self.axis.extent > 1 else ()
        by_dim = dict(zip(self.order, walked))
        self.position: Position = tuple(by_dim.get(dim, number(0)) for dim in range(len(self.sizes)))

    def position_in(self, sizes: tuple[int, ...]) -> Position:
        """The running position in reduced dimensions of other extents, equal in their row-major order."""
        if sizes == self.sizes:
            return self.position
        return delinearize(linearize(self.position, contiguous_strides(self.sizes)), sizes)


class Rows:
    """One reduction's iteration: a tensor of `shape`, reduced over `dims`, for every position of the other dimensions.

    A row is named by its position in the kept dimensions.
    """

    def __init__(
        self,
        context: Context,
        node: fx.Node,
        shape: tuple[int, ...],
        dims: tuple[int, ...],
        strides: Sequence[int] | None,
        ordered: bool,
    ) -> None:
        self.context, self.node = context, node
        self.shape, self.dims = shape, dims
        self.strides, self.ordered = strides, ordered
        self.kept = tuple(dim for dim in range(len(shape)) if dim not in dims)
        self.kept_shape = tuple(shape[dim] for dim in self.kept)
        self.reduced_shape = tuple(shape[dim] for dim in dims)
        self.only: Position | None = None

    @property
    def size(self) -> int:
        """Elements of a row."""
        return numel(self.reduced_shape)

    @property
    def count(self) -> int:
        """Rows."""
        return numel(self.kept_shape)

    def reduce(self, combine: str, at: At) -> At:
        """`at`, a function of the position in the whole shape, combined over each row: a function of the row."""
        return memoised(lambda row: self._reduced(combine, at, row))

    def _reduced(self, combine: str, at: At, row: Position) -> Expr:
        running = self.context.row
        assert running is not None
        if any(running.axis in free_axes(index) for index in row):
            raise NotFusable(f"{self.node.name} gives one value a row, and is used at other rows along one row")
        if self.only is not None and any(new is not old for new, old in zip(row, self.only, strict=True)):
            raise NotFusable(f"{self.node.name} would be computed again for each place that uses it")
        self.only = row
        return reduce(combine, (running.axis,), at(self.element(row, running.position_in(self.reduced_shape))))

    def element(self, row: Position, inner: Position) -> Position:
        """The position in the whole shape of a row and a position in the reduced dimensions."""
        places = {**dict(zip(self.kept, row, strict=True)), **dict(zip(self.dims, inner, strict=True))}
        return tuple(places[dim] for dim in range(len(self.shape)))

    def row_of(self, position: Position) -> Position:
        """The row that an element of the whole shape is in, or that an element of a keepdim result names."""
        return tuple(position[dim] for dim in self.kept)

    def kept_at(self, at: At, keepdim: bool) -> At:
        """A function of the row as a function of the position in the reduction's result."""
        return (lambda position: at(self.row_of(position))) if keepdim else at
