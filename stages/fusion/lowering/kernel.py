"""`build_kernel`: one loop kernel of a set of graph nodes.

Comes in: the nodes to inline and those of them to store. Goes out: a normalised, verified `Kernel` and the graph node
behind each of its buffers. The iteration space is that of the outputs, or, where the group reduces, that of the first
reduction (the anchor): its kept dimensions are parallel axes, its reduced ones the inner axis. Every other output is
placed in that space by its row-major order. All axes run in the order in which memory lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, fx

from stages.fusion.lowering.context import Context, Row, Rows
from stages.fusion.lowering.storage import extent, tensor_of
from stages.fusion.lowering.value import NotFusable, Position, numel, stored_type
from stages.ir.expr import Axis, Buffer, Load, cast, replace_buffers
from stages.ir.index import coefficient, contiguous_strides, delinearize, linearize, number, variables
from stages.ir.kernel import IRError, Kernel, Store, normalize, verify
from stages.ir.memory import overlaps

# Beyond this, inlining has copied work instead of sharing it, and compilers of the printed source slow down.
MAX_NODES = 4000


def build_kernel(
    nodes: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    name: str,
    emulate_precision_casts: bool = False,
) -> tuple[Kernel, list[fx.Node]]:
    """One kernel that computes `outputs`, with all of `nodes` inlined, and the node behind each of `kernel.buffers`.

    nodes     the nodes that are computed here, in any order; tensors from elsewhere are loaded from the memory of the
              node that owns it (`storage.base_of`). A view of one of `nodes` is inlined whether it is listed or not
    outputs   nodes of `nodes` to store, each with the strides of its own FakeTensor
    emulate_precision_casts   round the result of every node of a half type, as eager does between two kernels

    Raises `NotFusable(reason)` where these nodes are no kernel.
    """
    if not outputs:
        raise NotFusable("nothing of the group is used outside it")
    try:
        build = _Build(nodes, outputs, name, emulate_precision_casts)
        kernel = normalize(build.kernel())
        # Normal form has split the one parallel axis into loops; sorted by strides, more of them merge.
        ordered = _parallel_by_strides(kernel)
        kernel = kernel if ordered.parallel == kernel.parallel else normalize(ordered)
        verify(kernel)
    except IRError as error:
        raise NotFusable(str(error).removeprefix(f"kernel '{name}': ")) from error
    except RecursionError as error:
        raise NotFusable(f"{len(nodes)} operations nest too deep to be inlined") from error
    if len(kernel.nodes) > MAX_NODES:
        raise NotFusable(f"inlined, it has {len(kernel.nodes)} expressions, more than {MAX_NODES}")
    return _named(kernel, build.owners)


@dataclass(frozen=True)
class _Space:
    """The iteration space: its shape, the running position in it, and the axes."""

    shape: tuple[int, ...]
    position: Position
    rows: tuple[int, ...]
    row_position: Position
    parallel: tuple[Axis, ...]
    inner: tuple[Axis, ...]


class _Build:
    """One kernel in the making, before its loops are brought into normal form."""

    def __init__(self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], name: str, emulate: bool) -> None:
        self.outputs, self.name = outputs, name
        self.context = Context(nodes, emulate)
        self.owners: dict[Buffer, fx.Node] = {}
        for node in nodes:
            self.context.lower(node)

    def kernel(self) -> Kernel:
        reductions = self.context.reductions
        space = self.row_space(reductions) if reductions else self.flat_space()
        stores = tuple(self.store(node, f"out{count}", space) for count, node in enumerate(self.outputs))
        self.owners.update({buffer: node for node, buffer in self.context.loaded.items()})
        return Kernel(self.name, space.parallel, space.inner, stores)

    def flat_space(self) -> _Space:
        shape = tuple(_output(self.outputs[0]).shape)
        parallel, position = _parallel(shape)
        return _Space(shape, position, (), (), parallel, ())

    def row_space(self, reductions: Sequence[Rows]) -> _Space:
        anchor = reductions[0]
        for other in reductions:
            if (other.count, other.size) != (anchor.count, anchor.size):
                raise NotFusable(
                    f"{anchor.node.name} reduces {anchor.count} rows of {anchor.size} and "
                    f"{other.node.name} {other.count} rows of {other.size}"
                )
        if anchor.count * anchor.size == 0:
            raise NotFusable(f"{anchor.node.name} reduces an empty tensor")
        row = self.context.row = Row(anchor, _memory_order(reductions))
        parallel, kept = _parallel(anchor.kept_shape)
        position = anchor.element(kept, row.position)
        return _Space(anchor.shape, position, anchor.kept_shape, kept, parallel, (row.axis,))

    def store(self, node: fx.Node, name: str, space: _Space) -> Store:
        fake = _output(node)
        shape, strides = tuple(fake.shape), fake.stride()
        if overlaps(shape, strides):
            raise NotFusable(f"{node.name} is laid out with elements that share memory")
        buffer = Buffer(name, stored_type(fake.dtype), extent(shape, strides))
        self.owners[buffer] = node
        position, inner = self.place(node, shape, space)
        element = self.context.lower(node).at(position)
        return Store(buffer, linearize(position, strides), cast(element, buffer.dtype), inner)

    def place(self, node: fx.Node, shape: tuple[int, ...], space: _Space) -> tuple[Position, bool]:
        """The position in `shape` at which `node` is stored, and whether the store runs along the row."""
        whole = numel(space.shape)
        if space.inner and numel(space.rows) == numel(shape):
            return _reshaped(space.row_position, space.rows, shape), False
        if numel(shape) == whole:
            return _reshaped(space.position, space.shape, shape), bool(space.inner)
        loop = f"the rows of {list(space.shape)}" if space.inner else f"a loop over {list(space.shape)}"
        raise NotFusable(f"{node.name} has shape {list(shape)}, which does not fit {loop}")


def _output(node: fx.Node) -> Tensor:
    fake = tensor_of(node)
    if fake is None:
        raise NotFusable(f"{node.name} gives no single tensor to store")
    if fake.numel() == 0:
        raise NotFusable(f"{node.name} is empty")
    return fake


def _parallel(shape: tuple[int, ...]) -> tuple[tuple[Axis, ...], Position]:
    """One parallel axis over all of `shape`, and the running position.

    One axis, since its quotients always split into loops, whatever the shapes and permutations of the outputs are.
    """
    axis = Axis("i", numel(shape))
    if axis.extent == 1:
        return (), tuple(number(0) for _ in shape)
    return (axis,), delinearize(variables((axis,))[0], shape)


def _reshaped(position: Position, shape: tuple[int, ...], other: tuple[int, ...]) -> Position:
    """The position in `other` that has the same row-major number as `position` has in `shape`."""
    return position if shape == other else delinearize(linearize(position, contiguous_strides(shape)), other)


def _memory_order(reductions: Sequence[Rows]) -> tuple[int, ...] | None:
    """The anchor's reduced dimensions by falling stride of its input, so that the row is read as it lies in memory.

    None for the order of the dimensions, which a reduction that counts positions (argmax) has to keep.
    """
    anchor = reductions[0]
    if anchor.strides is None or any(rows.ordered for rows in reductions):
        return None
    strides = [anchor.strides[dim] for dim in anchor.dims]
    return tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))


def _parallel_by_strides(kernel: Kernel) -> Kernel:
    """The parallel axes by falling stride of what is stored, or, where one element a row is, of the largest load."""
    whole = next((store.index for store in kernel.stores if store.inner or not kernel.inner), None)
    if whole is None:
        loads = [node for node in kernel.nodes if isinstance(node, Load)]
        whole = max(loads, key=lambda node: node.buffer.size).index if loads else kernel.stores[0].index
    steps = {axis: coefficient(whole, axis) for axis in kernel.parallel}
    known = {axis: step for axis, step in steps.items() if step is not None}
    if len(known) != len(steps):
        return kernel
    return replace(kernel, parallel=tuple(sorted(kernel.parallel, key=lambda axis: -known[axis])))


def _named(kernel: Kernel, owners: dict[Buffer, fx.Node]) -> tuple[Kernel, list[fx.Node]]:
    """Buffers called in0, in1, ... and out0, out1, ... in the order of `kernel.buffers`, and the node behind each."""
    behind = [owners[buffer] for buffer in kernel.buffers]
    inputs = {buffer: Buffer(f"in{at}", buffer.dtype, buffer.size) for at, buffer in enumerate(kernel.inputs)}
    if any(new != old for old, new in inputs.items()):
        stores = [
            replace(store, index=replace_buffers(store.index, inputs), value=replace_buffers(store.value, inputs))
            for store in kernel.stores
        ]
        kernel = replace(kernel, stores=tuple(stores))
    return kernel, behind
