"""Level 2, the loop IR: a `Kernel` is a nest of parallel axes, a row of inner axes, and stores.

    kernel softmax(in0: float32[49152], out0: float32[49152])
      parallel i0:384  inner r0:128
      %0 = load in0[((i0 * 128) + r0)]
      ...
      out0[((i0 * 128) + r0)] = %7  over r0

A *pointwise* kernel has no inner axes; each store runs once for every position of `parallel`. A *row* kernel has inner
axes, the same ones for all its reductions and stores: a `Reduce` binds them all, a store with `inner=True` runs over
them again, one with `inner=False` runs once a row. So the value of a `Reduce` is uniform along the row, everything at
[parallel, inner] can be kept on chip between the loops, and softmax, layer norm or group norm are one kernel.
Positions of `parallel` are independent and run in any order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from stages.ir.expr import Axis, Buffer, Const, Expr, Load, Op, Reduce, Var, free_axes, walk
from stages.ir.index import add, coefficient, floordiv, mod, mul, number, substitute_all, variables
from stages.ir.ops import OPS


class IRError(Exception):
    """A value of the IR that breaks a rule of its level; the message names the value and the rule."""


@dataclass(frozen=True)
class Store:
    """buffer[index] = value, at every position of the parallel axes, and of the inner axes where `inner`.

    mode: "set" writes each element at most once a launch; "add" adds atomically to what is there.
    """

    buffer: Buffer
    index: Expr
    value: Expr
    inner: bool = False
    mode: str = "set"


@dataclass(frozen=True)
class Kernel:
    """One launch. `name` is for people; `hash` leaves it out."""

    name: str
    parallel: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    stores: tuple[Store, ...]

    @cached_property
    def roots(self) -> tuple[Expr, ...]:
        """Everything the stores evaluate: index and value of each, in order."""
        return tuple(expr for store in self.stores for expr in (store.index, store.value))

    @cached_property
    def nodes(self) -> tuple[Expr, ...]:
        """Every node once, operands before users."""
        return tuple(walk(*self.roots))

    @cached_property
    def inputs(self) -> tuple[Buffer, ...]:
        """The buffers that are read, in order of first use."""
        return tuple(dict.fromkeys(node.buffer for node in self.nodes if isinstance(node, Load)))

    @cached_property
    def outputs(self) -> tuple[Buffer, ...]:
        """The buffers that are written, in order of the stores."""
        return tuple(dict.fromkeys(store.buffer for store in self.stores))

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """The parameters, in calling order: inputs, then outputs that are not inputs too."""
        return tuple(dict.fromkeys((*self.inputs, *self.outputs)))

    @cached_property
    def reduces(self) -> tuple[Reduce, ...]:
        """The reductions, operands before users."""
        return tuple(node for node in self.nodes if isinstance(node, Reduce))

    @cached_property
    def checks_index(self) -> bool:
        """Whether a loaded index is bounds-checked, so that the kernel can report an index error."""
        return any(getattr(node, "name", None) == "bounded" for node in self.nodes)

    @property
    def rows(self) -> int:
        """Positions of the parallel axes."""
        return product(self.parallel)

    @property
    def row_size(self) -> int:
        """Positions of the inner axes; 1 for a pointwise kernel."""
        return product(self.inner)

    @cached_property
    def hash(self) -> str:
        """16 hex digits over the text form without the name: equal for equal work, in any process."""
        from stages.ir.text import kernel_text

        return hashlib.sha256(kernel_text(replace(self, name="_")).encode()).hexdigest()[:16]


def product(axes: Sequence[Axis]) -> int:
    size = 1
    for axis in axes:
        size *= axis.extent
    return size


# ---- verifier -----------------------------------------------------------------------------


def verify(kernel: Kernel) -> None:
    """Raise `IRError` unless `kernel` keeps the rules of this file."""

    def refuse(why: str) -> None:
        raise IRError(f"kernel '{kernel.name}': {why}")

    axes = (*kernel.parallel, *kernel.inner)
    if len({axis.name for axis in axes}) != len(axes):
        refuse("two axes have one name")
    if any(axis.extent < 1 for axis in axes):
        refuse("an axis has no positions; an empty tensor needs no kernel")
    if not kernel.stores:
        refuse("it stores nothing")
    names = [buffer.name for buffer in kernel.buffers]
    if len(set(names)) != len(names):
        refuse("two buffers have one name")
    for reduction in kernel.reduces:
        if reduction.axes != kernel.inner:
            refuse(f"a {reduction.combine} runs over {[a.name for a in reduction.axes]}, not over the inner axes")
        if loose := free_axes(reduction) - set(kernel.parallel):
            refuse(f"a {reduction.combine} depends on {sorted(a.name for a in loose)}: it is not uniform along the row")
    if kernel.inner and not (kernel.reduces or any(store.inner for store in kernel.stores)):
        refuse("nothing runs over its inner axes")
    for store in kernel.stores:
        scope = {*kernel.parallel, *(kernel.inner if store.inner else ())}
        for what, expr in (("index", store.index), ("value", store.value)):
            if loose := free_axes(expr) - scope:
                refuse(f"the {what} stored to {store.buffer.name} uses {sorted(a.name for a in loose)} out of scope")
        if store.value.dtype is not store.buffer.dtype:
            refuse(f"{store.value.dtype} is stored to {store.buffer.name}, which holds {store.buffer.dtype}")
        if store.mode not in ("set", "add"):
            refuse(f"store mode '{store.mode}' is none of set, add")
    for node in kernel.nodes:
        if isinstance(node, Op) and node.name not in OPS:
            refuse(f"there is no operator '{node.name}'")


# ---- loops made plain ---------------------------------------------------------------------


def normalize(kernel: Kernel) -> Kernel:
    """The same kernel with div/mod taken out of its indices where a finer loop nest allows, then loops merged.

    An axis that is divided or taken modulo c, c a divisor of its extent, is split in two; then neighbouring axes
    that every index walks as one are merged, and axes of one position vanish. Axes come out named i0, i1, ... and
    r0, r1, ...: two kernels that do the same work have the same text, hence the same hash.
    """
    while (split := _next_split(kernel)) is not None:
        kernel = _split(kernel, *split)
    kernel = _drop_units(kernel)
    for which in ("parallel", "inner"):
        position = 0
        while position + 1 < len(getattr(kernel, which)):
            outer, last = getattr(kernel, which)[position : position + 2]
            if _mergeable(kernel, outer, last):
                kernel = _merge(kernel, which, position)
            else:
                position += 1
    return _renamed(kernel)


def _indices(kernel: Kernel) -> list[Expr]:
    """The index of every load and store, and every mask and value that uses a loop index as a number."""
    found: list[Expr] = []
    for node in kernel.nodes:
        if isinstance(node, Load):
            found.append(node.index)
    return found + [store.index for store in kernel.stores]


def _next_split(kernel: Kernel) -> tuple[Axis, int] | None:
    for node in kernel.nodes:
        if not (isinstance(node, Op) and node.name in ("floordiv", "mod") and isinstance(node.args[1], Const)):
            continue
        inside, size = node.args[0], int(node.args[1].value)
        if isinstance(inside, Var) and size > 1 and inside.axis.extent % size == 0 and inside.axis.extent > size:
            if inside.axis in kernel.parallel or not _counts_positions(kernel):
                return inside.axis, size
    return None


def _counts_positions(kernel: Kernel) -> bool:
    return any(reduction.combine in ("argmax", "argmin") for reduction in kernel.reduces)


def _rewrite(kernel: Kernel, old: tuple[Axis, ...], values: dict[Axis, Expr], new: tuple[Axis, ...]) -> Kernel:
    """`kernel` with the neighbouring axes `old` replaced by `new`, and each index of `old` by `values`."""

    def axes(current: tuple[Axis, ...]) -> tuple[Axis, ...]:
        at = current.index(old[0])
        return (*current[:at], *new, *current[at + len(old) :])

    which = "parallel" if old[0] in kernel.parallel else "inner"
    stores = _substituted(kernel, values, {old[0]: new, **{axis: () for axis in old[1:]}})
    if which == "parallel":
        return replace(kernel, stores=stores, parallel=axes(kernel.parallel))
    return replace(kernel, stores=stores, inner=axes(kernel.inner))


def _substituted(kernel: Kernel, values: dict[Axis, Expr], bound: dict[Axis, tuple[Axis, ...]]) -> tuple[Store, ...]:
    roots = iter(substitute_all(kernel.roots, values, bound))
    return tuple(replace(store, index=next(roots), value=next(roots)) for store in kernel.stores)


def _split(kernel: Kernel, axis: Axis, size: int) -> Kernel:
    outer, last = Axis(f"{axis.name}h", axis.extent // size), Axis(f"{axis.name}l", size)
    high, low = variables((outer, last))
    return _rewrite(kernel, (axis,), {axis: add(mul(high, size), low)}, (outer, last))


def _drop_units(kernel: Kernel) -> Kernel:
    for which in ("parallel", "inner"):
        for axis in getattr(kernel, which):
            if axis.extent == 1 and not (which == "inner" and len(kernel.inner) == 1):
                kernel = _rewrite(kernel, (axis,), {axis: number(0)}, ())
    return kernel


def _mergeable(kernel: Kernel, outer: Axis, last: Axis) -> bool:
    """Whether every use of the two axes is outer * extent(last) + last, up to a factor."""
    inside_index: set[int] = set()
    for index in _indices(kernel):
        near, far = coefficient(index, last), coefficient(index, outer)
        if near is None or far is None or far != near * last.extent:
            return False
        inside_index |= {id(node) for node in walk(index)}
    # An index used as a value (a mask, arange) must keep its own loop: it is not looked through here.
    for node in kernel.nodes:
        if isinstance(node, Load) or id(node) in inside_index:
            continue
        for child in node.children:
            if isinstance(child, Var) and child.axis in (outer, last):
                return False
    for store in kernel.stores:
        if isinstance(store.value, Var) and store.value.axis in (outer, last):
            return False
    return not any(
        isinstance(node, Op) and node.name in ("floordiv", "mod") and free_axes(node) & {outer, last}
        for node in kernel.nodes
    )


def _merge(kernel: Kernel, which: str, position: int) -> Kernel:
    outer, last = getattr(kernel, which)[position : position + 2]
    merged = Axis(f"{outer.name}m", outer.extent * last.extent)
    (both,) = variables((merged,))
    values = {outer: floordiv(both, last.extent), last: mod(both, last.extent)}
    return _rewrite(kernel, (outer, last), values, (merged,))


def _renamed(kernel: Kernel) -> Kernel:
    """Axes as i0, i1, ... and r0, r1, ... in order, all in one substitution."""
    parallel, inner = (
        tuple(Axis(f"{prefix}{count}", axis.extent) for count, axis in enumerate(axes))
        for prefix, axes in (("i", kernel.parallel), ("r", kernel.inner))
    )
    new = dict(zip((*kernel.parallel, *kernel.inner), (*parallel, *inner), strict=True))
    if all(old == axis for old, axis in new.items()):
        return kernel
    values = dict(zip(new, variables(tuple(new.values())), strict=True))
    bound = {old: (axis,) for old, axis in new.items()}
    return Kernel(kernel.name, parallel, inner, _substituted(kernel, values, bound))


# ---- facts that planners and printers ask for ----------------------------------------------


def in_place(kernel: Kernel) -> frozenset[tuple[Buffer, Buffer]]:
    """The pairs (input, output) that may share memory: the input is last read where the output is written.

    True where both hold elements of one size, all stores are one loop, and every load of the input has the index of
    the store to the output (so a position reads only what that same position will write).
    """
    if len({store.inner for store in kernel.stores}) != 1:
        return frozenset()
    pairs = set()
    for store in kernel.stores:
        for buffer in kernel.inputs:
            loads = [node for node in kernel.nodes if isinstance(node, Load) and node.buffer == buffer]
            same = all(node.index is store.index for node in loads)
            alone = sum(other.buffer == store.buffer for other in kernel.stores) == 1
            if same and alone and store.mode == "set" and buffer.dtype.itemsize == store.buffer.dtype.itemsize:
                if buffer not in kernel.outputs:
                    pairs.add((buffer, store.buffer))
    return frozenset(pairs)


def traffic(kernel: Kernel) -> tuple[int, int]:
    """Bytes that must cross the memory bus at the least: (read, written), each element of each buffer once.

    A buffer counts with its size or, if that is less, with the number of positions at which it is accessed.
    """
    read = 0
    for buffer in kernel.inputs:
        loads = [node for node in kernel.nodes if isinstance(node, Load) and node.buffer == buffer]
        touched = sum(_positions(node.index) for node in loads)
        read += min(buffer.size, touched) * buffer.dtype.itemsize
    written = sum(_positions(store.index) * store.buffer.dtype.itemsize for store in kernel.stores)
    return read, written


def _positions(index: Expr) -> int:
    """How many different positions of the loops `index` distinguishes."""
    return product(tuple(free_axes(index)))
