"""A tensor as a function of position, and the small tools that every family of lowerings builds with.

Comes in: positions, tuples of int64 expressions, one a dimension. Goes out: expressions of the loop IR in the compute
type of the tensor's dtype (float32 for the half types). Nothing here knows of graphs or kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stages.ir.dtype import DType, from_torch
from stages.ir.expr import Const, Expr, Load, Number, Op, Reduce, cast, const, free_axes, load, op, rebuild, select
from stages.ir.expr import reduce as reduce_over
from stages.ir.index import bounds, number

Position = tuple[Expr, ...]
At = Callable[[Position], Expr]


class NotFusable(Exception):
    """A set of nodes is no kernel; `reason` says why in one plain sentence without a full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Value:
    """A tensor: `at(position)` is its element there, in `DType.compute` of `dtype`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    at: At

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return numel(self.shape)


def numel(shape: Sequence[int]) -> int:
    """Elements of a tensor of this shape."""
    total = 1
    for extent in shape:
        total *= extent
    return total


def memoised(at: At) -> At:
    """`at`, which computes each position once: a value with many users would else be built anew along every path."""
    done: dict[tuple[int, ...], tuple[Position, Expr]] = {}

    def recalled(position: Position) -> Expr:
        key = tuple(map(id, position))
        if key not in done:
            done[key] = (position, at(position))  # the position is kept too, so that its ids stay taken
        return done[key][1]

    return recalled


def value(shape: Sequence[int], dtype: torch.dtype, at: At) -> Value:
    """A `Value` that remembers its elements."""
    return Value(tuple(shape), dtype, memoised(at))


# ---- types --------------------------------------------------------------------------------


def stored_type(dtype: torch.dtype) -> DType:
    """The IR's type of a tensor in memory. Raises `NotFusable` for one it does not have."""
    found = from_torch(dtype)
    if found is None:
        raise NotFusable(f"the loop IR has no type {str(dtype).removeprefix('torch.')}")
    return found


def compute_type(dtype: torch.dtype) -> DType:
    """The IR's type of arithmetic on a tensor of `dtype`."""
    return stored_type(dtype).compute


def rounded(expr: Expr, dtype: torch.dtype) -> Expr:
    """`expr` converted to `dtype` as a store and a load would: a half type rounds, and comes back as float32."""
    kind = stored_type(dtype)
    return cast(cast(expr, kind), kind.compute)


def literal(number: Number, dtype: torch.dtype) -> Const:
    """A Python scalar as an element of a tensor of `dtype`, rounded to it, in its compute type."""
    kind = stored_type(dtype)
    if kind.is_half:
        number = torch.tensor(float(number), dtype=dtype, device="cpu").item()
    return const(number, kind.compute)


# ---- positions ----------------------------------------------------------------------------


def broadcast_at(tensor: Value, position: Position) -> Expr:
    """The element of `tensor` that broadcasting puts at `position` of a larger shape."""
    aligned = position[len(position) - tensor.ndim :]
    return tensor.at(tuple(number(0) if size == 1 else at for at, size in zip(aligned, tensor.shape, strict=True)))


def dimension(dim: int, ndim: int) -> int:
    """`dim` counted from the front; a 0-dim tensor has dimension 0."""
    return dim % max(ndim, 1)


def dimensions(dims: int | Sequence[int] | None, ndim: int, empty_is_all: bool = True) -> tuple[int, ...]:
    """`dims` counted from the front, in rising order; None (and an empty list, if so said) is all of them."""
    if dims is None or (not isinstance(dims, int) and not dims and empty_is_all):
        return tuple(range(ndim))
    listed = [dims] if isinstance(dims, int) else dims
    return tuple(sorted({dimension(dim, ndim) for dim in listed})) if ndim else ()


# ---- loads kept inside their memory ---------------------------------------------------------


def within(index: Expr, low: int, high: int) -> list[Expr]:
    """The conditions for low <= index < high; those that always hold are left out, and one that never does is all."""
    span = bounds(index)
    if span is not None and (span[1] < low or span[0] >= high):
        return [const(False, DType.BOOL)]
    conditions: list[Expr] = []
    if span is None or span[0] < low:
        conditions.append(op("ge", index, number(low)))
    if span is None or span[1] >= high:
        conditions.append(op("lt", index, number(high)))
    return conditions


def every(conditions: Sequence[Expr]) -> Expr:
    """The conjunction of `conditions`; true if there are none."""
    result: Expr = const(True, DType.BOOL)
    for condition in conditions:
        result = both(result, condition)
    return result


def both(one: Expr, two: Expr) -> Expr:
    """`one and two`, decided at once where one of them is known or they are the same."""
    for known, other in ((one, two), (two, one)):
        if isinstance(known, Const):
            return other if known.value else known
    return one if one is two else op("and", one, two)


def guarded(root: Expr, conditions: Sequence[Expr]) -> Expr:
    """`root` for use where all `conditions` hold: elsewhere its value is of no account and it touches no memory.

    Loads get the conditions as their mask, and a bounds check sees index 0 where they do not hold. Inside a reduction
    only the conditions that do not depend on its axes are used: its row does not depend on them either.
    """
    if not conditions:
        return root
    mask = every(conditions)
    done: dict[int, Expr] = {}
    for node in _scope(root):
        if isinstance(node, Reduce):
            outer = [condition for condition in conditions if not free_axes(condition) & set(node.axes)]
            done[id(node)] = reduce_over(node.combine, node.axes, guarded(node.body, outer))
            continue
        new = rebuild(node, tuple(done[id(child)] for child in node.children)) if node.children else node
        if isinstance(new, Load):
            inside = mask if new.mask is None else both(mask, new.mask)
            new = load(new.buffer, new.index, inside, 0 if new.other is None else new.other.value)
        elif isinstance(new, Op) and new.name == "bounded":
            new = op("bounded", select(mask, new.args[0], number(0)), new.args[1])
        done[id(node)] = new
    return done[id(root)]


def _scope(root: Expr) -> list[Expr]:
    """The nodes below `root`, operands first, without the bodies of reductions."""
    order: list[Expr] = []
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            if not isinstance(node, Reduce):
                stack.extend((child, False) for child in reversed(node.children))
    return order
