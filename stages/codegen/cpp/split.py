"""A long reduction with few rows, as two kernels: one reduces slices of the row, the other what the slices gave.

So that the sum of ten million elements can be shared out to threads. How a row is cut does not depend on the number of
threads, so neither does the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stages.codegen.cpp.plan import GRAIN, plan
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, Expr, Reduce, cast, load, rebuild, reduce, walk
from stages.ir.index import add, contiguous_strides, linearize, mul, substitute, variables
from stages.ir.kernel import Kernel, Store
from stages.ir.schedule import Schedule

# With fewer items than ENOUGH to share out, a row is cut into at least as many slices and at most MOST.
ENOUGH, MOST = 8, 64


@dataclass(frozen=True)
class Split:
    """`slices` writes the buffers `partials`, which `rest` reads."""

    slices: Kernel
    rest: Kernel
    partials: tuple[Buffer, ...]


def split(kernel: Kernel, schedule: Schedule) -> Split | None:
    """`kernel` in two; None where there is enough to share out, or it is no plain reduction, or no even cut."""
    whole = plan(kernel, schedule)
    if schedule.threads == 1 or whole.count >= ENOUGH or whole.cost * kernel.row_size * kernel.rows < 4 * GRAIN:
        return None
    plain = all(reduction.combine not in ("argmax", "argmin") for reduction in kernel.reduces)
    nested = any(isinstance(node, Reduce) for reduction in kernel.reduces for node in walk(reduction.body))
    if not kernel.reduces or nested or not plain or any(store.inner or store.mode != "set" for store in kernel.stores):
        return None
    axis = whole.inner[0]
    count = max((d for d in range(ENOUGH, MOST + 1) if axis.extent % d == 0), default=0)
    return _cut(kernel, axis, count) if count else None


def _cut(kernel: Kernel, axis: Axis, count: int) -> Split:
    high, low = Axis(f"{axis.name}h", count), Axis(f"{axis.name}l", axis.extent // count)
    over = (*kernel.parallel, high)
    place = linearize(variables(over), contiguous_strides([each.extent for each in over]))
    step, offset = variables((high, low))
    values = {axis: add(mul(step, low.extent), offset)}
    partials: list[Buffer] = []
    stores: list[Store] = []
    joined: dict[Expr, Expr] = {}
    for number, reduction in enumerate(kernel.reduces):
        partial = Buffer(f"partial{number}", reduction.dtype, kernel.rows * count)
        partials.append(partial)
        stores.append(Store(partial, place, substitute(reduction, values, {axis: (low,)})))
        # Sums of slices are large beside what they are added to: in double, like the blocks of a sum.
        wide = DType.FLOAT64 if reduction.dtype.is_float else reduction.dtype
        joined[reduction] = cast(reduce(reduction.combine, (high,), cast(load(partial, place), wide)), reduction.dtype)
    inner = tuple(low if each == axis else each for each in kernel.inner)
    after = tuple(
        replace(store, index=_replaced(store.index, joined), value=_replaced(store.value, joined))
        for store in kernel.stores
    )
    return Split(
        slices=Kernel(f"{kernel.name}_slices", over, inner, tuple(stores)),
        rest=Kernel(f"{kernel.name}_rest", kernel.parallel, (high,), after),
        partials=tuple(partials),
    )


def _replaced(root: Expr, values: dict[Expr, Expr]) -> Expr:
    """`root` with the nodes that are keys of `values` replaced."""
    done = dict(values)
    for node in walk(root):
        if node not in done:
            done[node] = rebuild(node, tuple(done[child] for child in node.children)) if node.children else node
    return done[root]
