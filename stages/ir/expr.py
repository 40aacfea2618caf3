"""Expressions of the loop IR: frozen, hash-consed nodes, so that equal expressions are the same object.

    Const(value, dtype)                 a literal
    Var(axis)                           the running index of an axis, int64
    Op(name, args)                      an operator of `ops.OPS`, pointwise and index arithmetic alike
    Cast(value, dtype)                  conversion as torch does it (round to nearest even, truncation towards zero)
    Select(condition, yes, no)          yes where condition, else no; the side not taken is not observed
    Load(buffer, index, mask, other)    buffer[index] where mask, else other; `index` counts elements from its start
    Reduce(combine, axes, body)         body combined over the reduce axes that it binds

Views have no node: they are composed into `index`. A `Reduce` binds its axes: outside it the same axis may be bound
again (by another `Reduce` or by a `Store` that runs over it), so `x[i, r]` inside a sum and at the store of the same
row is one object, which is how a printer sees that it can keep the row on chip.

Build with the functions in lower case (`op`, `cast`, ...), which check types and fold what is plain; `index.py` has the
constructors for index arithmetic, which keep a canonical form.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from stages.ir.dtype import DType
from stages.ir.ops import reduce_dtype, result_dtype

Number = bool | int | float


@dataclass(frozen=True)
class Axis:
    """A loop: `name` is unique in a kernel, `extent` is its trip count (at least 1)."""

    name: str
    extent: int


@dataclass(frozen=True)
class Buffer:
    """A formal parameter of a kernel: flat memory of `size` elements of `dtype`."""

    name: str
    dtype: DType
    size: int


@dataclass(frozen=True, eq=False)
class Expr:
    """Base of the nodes. Equality is identity: `_intern` makes equal nodes the same object."""

    dtype: DType

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Const(Expr):
    value: Number = 0


@dataclass(frozen=True, eq=False)
class Var(Expr):
    axis: Axis = field(default_factory=lambda: Axis("?", 1))


@dataclass(frozen=True, eq=False)
class Op(Expr):
    name: str = ""
    args: tuple[Expr, ...] = ()

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True, eq=False)
class Cast(Expr):
    value: Expr = None  # type: ignore[assignment]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value,)


@dataclass(frozen=True, eq=False)
class Select(Expr):
    condition: Expr = None  # type: ignore[assignment]
    yes: Expr = None  # type: ignore[assignment]
    no: Expr = None  # type: ignore[assignment]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.condition, self.yes, self.no)


@dataclass(frozen=True, eq=False)
class Load(Expr):
    buffer: Buffer = None  # type: ignore[assignment]
    index: Expr = None  # type: ignore[assignment]
    mask: Expr | None = None
    other: Const | None = None

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.index,) if self.mask is None else (self.index, self.mask)


@dataclass(frozen=True, eq=False)
class Reduce(Expr):
    combine: str = ""
    axes: tuple[Axis, ...] = ()
    body: Expr = None  # type: ignore[assignment]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.body,)


# ---- hash-consing -------------------------------------------------------------------------

_nodes: WeakValueDictionary[tuple[Any, ...], Expr] = WeakValueDictionary()
_lock = threading.Lock()
_Node = TypeVar("_Node", bound=Expr)


def _intern(kind: type[_Node], key: tuple[Any, ...], make: Callable[[], _Node]) -> _Node:
    """The one node of `kind` with this key. Child nodes enter the key by identity; the node keeps them alive."""
    full = (kind, *key)
    with _lock:
        node = _nodes.get(full)
        if node is None:
            node = _nodes[full] = make()
    return node  # type: ignore[return-value]


def const(value: Number, dtype: DType) -> Const:
    """A literal of `dtype`. Whole numbers wrap to the type; floats are kept in double precision until printed."""
    if dtype is DType.BOOL:
        value = bool(value)
    elif dtype.is_float:
        value = float(value)
    else:
        value = wrap(int(value), dtype)
    return _intern(Const, (dtype, repr(value)), lambda: Const(dtype, value))


def wrap(value: int, dtype: DType) -> int:
    """`value` in two's complement (modulo 2**bits) as `dtype` holds it."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value if dtype is DType.UINT8 or value < 1 << (bits - 1) else value - (1 << bits)


def var(axis: Axis) -> Var:
    return _intern(Var, (axis,), lambda: Var(DType.INT64, axis))


def op(name: str, *args: Expr) -> Expr:
    """`name` over `args`. Raises `TypeError` where `ops.result_dtype` does."""
    dtype = result_dtype(name, tuple(arg.dtype for arg in args))
    return _intern(Op, (name, *map(id, args)), lambda: Op(dtype, name, args))


def cast(value: Expr, dtype: DType) -> Expr:
    """`value` as `dtype`; no node where it has that type already. A literal is converted on the spot if exact."""
    if value.dtype is dtype:
        return value
    if isinstance(value, Const) and not dtype.is_half and not (dtype is DType.FLOAT32 and value.dtype is DType.FLOAT64):
        if dtype.is_float or dtype is DType.BOOL or not value.dtype.is_float or math.isfinite(value.value):
            return const(value.value, dtype)
    return _intern(Cast, (id(value), dtype), lambda: Cast(dtype, value))


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """`yes` where `condition`, else `no`. Raises `TypeError` on a condition that is no bool or sides that differ."""
    if condition.dtype is not DType.BOOL or yes.dtype is not no.dtype:
        raise TypeError(f"select({condition.dtype}, {yes.dtype}, {no.dtype}): wants bool and two sides of one type")
    if isinstance(condition, Const):
        return yes if condition.value else no
    if yes is no:
        return yes
    return _intern(Select, (id(condition), id(yes), id(no)), lambda: Select(yes.dtype, condition, yes, no))


def load(buffer: Buffer, index: Expr, mask: Expr | None = None, other: Number = 0) -> Expr:
    """`buffer[index]`, an expression of the buffer's own type; where `mask` is false, memory is not touched.

    A load of a half type can only be cast: `cast(load(...), dtype.compute)`.
    """
    if index.dtype is not DType.INT64 or (mask is not None and mask.dtype is not DType.BOOL):
        raise TypeError(f"load of {buffer.name}: wants an int64 index and a bool mask")
    if isinstance(mask, Const):
        if not mask.value:
            return const(other, buffer.dtype)
        mask = None
    rest = None if mask is None else const(other, buffer.dtype)
    key = (buffer, id(index), id(mask), id(rest))
    return _intern(Load, key, lambda: Load(buffer.dtype, buffer, index, mask, rest))


def reduce(combine: str, axes: tuple[Axis, ...], body: Expr) -> Expr:
    """`body` combined over `axes` (at least one). Sums of whole numbers wrap; floats accumulate in `body.dtype`."""
    if not axes:
        raise TypeError(f"'{combine}' over no axes")
    dtype = reduce_dtype(combine, body.dtype)
    return _intern(Reduce, (combine, axes, id(body)), lambda: Reduce(dtype, combine, axes, body))


# ---- walking ------------------------------------------------------------------------------


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every node below `roots` once, operands before their users."""
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children))


def free_axes(root: Expr) -> frozenset[Axis]:
    """The axes whose index `root` uses without binding it."""
    found: dict[int, frozenset[Axis]] = {}
    for node in walk(root):
        if isinstance(node, Var):
            found[id(node)] = frozenset({node.axis})
        else:
            axes = frozenset().union(*(found[id(child)] for child in node.children))
            found[id(node)] = axes - set(node.axes) if isinstance(node, Reduce) else axes
    return found[id(root)]


def rebuild(node: Expr, children: tuple[Expr, ...]) -> Expr:
    """`node` over other children, in the order of `node.children`; index arithmetic is *not* simplified here."""
    if all(new is old for new, old in zip(children, node.children, strict=True)):
        return node
    if isinstance(node, Op):
        return op(node.name, *children)
    if isinstance(node, Cast):
        return cast(children[0], node.dtype)
    if isinstance(node, Select):
        return select(*children)
    if isinstance(node, Load):
        mask = children[1] if len(children) == 2 else None
        return load(node.buffer, children[0], mask, node.other.value if node.other is not None else 0)
    if isinstance(node, Reduce):
        return reduce(node.combine, node.axes, children[0])
    raise TypeError(f"{type(node).__name__} has no children")


def replace_buffers(root: Expr, buffers: Mapping[Buffer, Buffer]) -> Expr:
    """`root` with every load of a key of `buffers` made a load of its value."""
    done: dict[int, Expr] = {}
    for node in walk(root):
        new = rebuild(node, tuple(done[id(child)] for child in node.children)) if node.children else node
        if isinstance(new, Load) and new.buffer in buffers:
            new = load(buffers[new.buffer], new.index, new.mask, new.other.value if new.other is not None else 0)
        done[id(node)] = new
    return done[id(root)]
