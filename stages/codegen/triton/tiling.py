"""How a kernel's positions are laid out in programs and blocks.

Comes in: a `Kernel` and a `Schedule`. Goes out: a `Tiling`: the shape of a block, how many programs run, and the lines
that compute the index of every axis. There are three layouts:

    flat        pointwise: a block of `tile` positions of all parallel axes, flattened
    transposed  pointwise, where some access runs along another axis than the last: a square block of the two axes, so
                that each access is contiguous along one of its sides
    rows        `tile` rows by the flattened inner axes, the whole row (persistent) or `reduce_tile` of it at a time

A block has one or two *dimensions*, numbered as in its shape; a value varies along some of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stages.ir.expr import Axis, Load
from stages.ir.index import coefficient
from stages.ir.kernel import IRError, Kernel, product
from stages.ir.schedule import Schedule

# Triton's own limit on the elements of a block.
LARGEST_BLOCK = 1 << 20
LARGEST_GRID = (1 << 31) - 1
# Positions that two axes must have for blocks of them: a program of a few positions costs as much as one of hundreds.
SMALLEST_SQUARE = 128

Dims = frozenset[int]
NOWHERE: Dims = frozenset()


@dataclass(frozen=True)
class Tiling:
    """The layout of one kernel.

    shape      sides of a block, powers of two
    programs   programs of the launch
    names      the variable that holds the index of each axis
    dims       the dimensions of the block along which each axis' index varies
    lines      source that computes the indices of the parallel axes, once a program
    guards     by dimension, the variable that is true where a position is one of the kernel's; none where all are
    row_lines  source that computes the indices of the inner axes from the variable `inner`
    inner      the dimension along which the inner axes run; None in a pointwise kernel
    """

    shape: tuple[int, ...]
    programs: int
    names: dict[Axis, str]
    dims: dict[Axis, Dims]
    lines: tuple[str, ...]
    guards: dict[int, str]
    row_lines: tuple[str, ...] = ()
    inner: int | None = None

    def lanes(self, dim: int) -> str:
        """Source of 0, 1, ... along a dimension, broadcastable over the block."""
        return self.lanes_of(self.shape, dim)

    @staticmethod
    def lanes_of(shape: tuple[int, ...], dim: int) -> str:
        if len(shape) == 1:
            return f"tl.arange(0, {shape[dim]})"
        return f"tl.arange(0, {shape[dim]})[{'None, :' if dim else ':, None'}]"

    def extent_of(self, dims: Dims) -> list[int]:
        """The shape of a value that varies along `dims`; empty for a scalar."""
        return [size if dim in dims else 1 for dim, size in enumerate(self.shape)] if dims else []

    @property
    def row_dims(self) -> Dims:
        """The dimensions along which what is computed once a row varies."""
        return frozenset(range(len(self.shape))) - {self.inner}


def tiling_of(kernel: Kernel, schedule: Schedule, wide: bool) -> Tiling:
    """The layout of `kernel` under `schedule`; `wide`: positions and indices need int64.

    Raises `IRError` for a schedule that this kernel cannot have.
    """
    _check(kernel, schedule)
    names = {
        **{axis: f"i{count}" for count, axis in enumerate(kernel.parallel)},
        **{axis: f"r{count}" for count, axis in enumerate(kernel.inner)},
    }
    program = "tl.program_id(0)" + (".to(tl.int64)" if wide else "")
    if kernel.inner:
        tiling = _rows(kernel, schedule, names, program)
    elif (pair := transposed_axes(kernel)) is not None and schedule.tile > 1:
        tiling = _transposed(kernel, schedule, names, program, pair)
    else:
        tiling = _flat(kernel, schedule, names, program)
    if math.prod(tiling.shape) > LARGEST_BLOCK or tiling.programs > LARGEST_GRID:
        raise IRError(
            f"kernel '{kernel.name}': {schedule.text()} makes {tiling.programs} programs of "
            f"{math.prod(tiling.shape)} positions; at most {LARGEST_GRID} and {LARGEST_BLOCK} are possible"
        )
    return tiling


def _check(kernel: Kernel, schedule: Schedule) -> None:
    def refuse(why: str) -> None:
        raise IRError(f"kernel '{kernel.name}': {schedule.text()}: {why}")

    for name in ("tile", "reduce_tile", "num_warps"):
        size = getattr(schedule, name)
        if size < 1 or size & (size - 1):
            refuse(f"{name} is {size}, not a power of two")
    if schedule.num_stages < 1:
        refuse(f"num_stages is {schedule.num_stages}, not at least 1")
    if kernel.inner and schedule.persistent and schedule.reduce_tile < kernel.row_size:
        refuse(f"a persistent row of {kernel.row_size} needs a reduce_tile of at least that many")


def split_lines(source: str, axes: Sequence[Axis], names: dict[Axis, str]) -> tuple[str, ...]:
    """Lines that compute the index of each of `axes` from their flattened position `source`."""
    lines = []
    stride = product(tuple(axes))
    for count, axis in enumerate(axes):
        stride //= axis.extent
        index = f"{source} // {stride}" if stride > 1 else source
        lines.append(f"{names[axis]} = {index} % {axis.extent}" if count else f"{names[axis]} = {index}")
    return tuple(lines)


def _flat(kernel: Kernel, schedule: Schedule, names: dict[Axis, str], program: str) -> Tiling:
    shape = (schedule.tile,)
    lines = [f"position = {program} * {schedule.tile} + {Tiling.lanes_of(shape, 0)}"]
    guards = {}
    if kernel.rows % schedule.tile:
        guards[0] = "inside"
        lines.append(f"inside = position < {kernel.rows}")
    lines.extend(split_lines("position", kernel.parallel, names))
    dims = dict.fromkeys(kernel.parallel, frozenset({0}))
    return Tiling(shape, _ceil(kernel.rows, schedule.tile), names, dims, tuple(lines), guards)


def _rows(kernel: Kernel, schedule: Schedule, names: dict[Axis, str], program: str) -> Tiling:
    tile = schedule.tile
    alone = tile == 1
    shape = (schedule.reduce_tile,) if alone else (tile, schedule.reduce_tile)
    inner = len(shape) - 1
    row = program if alone else f"{program} * {tile} + {Tiling.lanes_of(shape, 0)}"
    lines, guards = [f"row = {row}"], {}
    if kernel.rows % tile:
        guards[0] = "row_inside"
        lines.append(f"row_inside = row < {kernel.rows}")
    lines.extend(split_lines("row", kernel.parallel, names))
    row_lines = []
    if kernel.row_size % schedule.reduce_tile:
        guards[inner] = "inner_inside"
        row_lines.append(f"inner_inside = inner < {kernel.row_size}")
    row_lines.extend(split_lines("inner", kernel.inner, names))
    dims = {
        **dict.fromkeys(kernel.parallel, NOWHERE if alone else frozenset({0})),
        **dict.fromkeys(kernel.inner, frozenset({inner})),
    }
    programs = _ceil(kernel.rows, tile)
    return Tiling(shape, programs, names, dims, tuple(lines), guards, tuple(row_lines), inner)


def transposed_axes(kernel: Kernel) -> tuple[Axis, Axis] | None:
    """(another axis, last axis) where some access steps by one along the other and jumps along the last; or None."""
    if len(kernel.parallel) < 2:
        return None
    last = kernel.parallel[-1]
    indices = [node.index for node in kernel.nodes if isinstance(node, Load)]
    for index in (*indices, *(store.index for store in kernel.stores)):
        if coefficient(index, last) in (None, 0, 1, -1):
            continue
        for axis in kernel.parallel[:-1]:
            if coefficient(index, axis) == 1 and axis.extent * last.extent >= SMALLEST_SQUARE:
                return axis, last
    return None


def _transposed(
    kernel: Kernel, schedule: Schedule, names: dict[Axis, str], program: str, pair: tuple[Axis, Axis]
) -> Tiling:
    shape = _square(schedule.tile, pair[0].extent, pair[1].extent)
    tiles = tuple(_ceil(axis.extent, size) for axis, size in zip(pair, shape, strict=True))
    outer = [axis for axis in kernel.parallel if axis not in pair]
    lines, guards = [f"program = {program}"], {}
    starts = (f"program // {tiles[1]} % {tiles[0]}", f"program % {tiles[1]}")
    for dim, (axis, size) in enumerate(zip(pair, shape, strict=True)):
        lines.append(f"{names[axis]} = ({starts[dim]}) * {size} + {Tiling.lanes_of(shape, dim)}")
        if axis.extent % size:
            guards[dim] = f"inside_{dim}"
            lines.append(f"inside_{dim} = {names[axis]} < {axis.extent}")
    if outer:
        lines.append(f"outer = program // {tiles[0] * tiles[1]}")
        lines.extend(split_lines("outer", outer, names))
    dims = {**dict.fromkeys(outer, NOWHERE), pair[0]: frozenset({0}), pair[1]: frozenset({1})}
    return Tiling(shape, tiles[0] * tiles[1] * product(tuple(outer)), names, dims, tuple(lines), guards)


def _square(tile: int, height: int, width: int) -> tuple[int, int]:
    """`tile` positions as nearly square as the extents allow; both sides are powers of two."""
    bits = tile.bit_length() - 1
    across = min(bits - bits // 2, _bits(width))
    down = min(bits - across, _bits(height))
    return 1 << down, 1 << min(bits - down, _bits(width))


def _bits(extent: int) -> int:
    """The exponent of the least power of two that is no less than `extent`."""
    return (extent - 1).bit_length()


def _ceil(size: int, step: int) -> int:
    return -(-size // step)
