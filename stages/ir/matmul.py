"""Matrix products in the loop IR: no node of their own, but a shape of kernel that a printer can do better.

    parallel i0:128 i1:3072  inner r0:768
    %0 = load in0[((i0 * 768) + r0)]
    %1 = cast %0 to float32
    %2 = load in1[((i1 * 768) + r0)]
    %3 = cast %2 to float32
    %4 = mul %1, %3
    %5 = sum over r0 of %4
    ...
    out0[((i0 * 3072) + i1)] = ...

A kernel is a matrix product if it sums the product of two operands over its inner axes, stores once a row, and each
parallel axis enters one operand (the *rows* of the result enter the first, its *columns* the second) or both (the
*batch*). The operands may be any expressions: those are the holes for a prologue. What the stores make of the sum is
the epilogue. An operand of a half type is a cast from it, so the product is exact and the sum runs in float32, which is
what tensor cores compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stages.ir.dtype import DType
from stages.ir.expr import Axis, Cast, Expr, Load, Op, Reduce, free_axes, walk
from stages.ir.index import coefficient
from stages.ir.kernel import Kernel, product


@dataclass(frozen=True)
class Matmul:
    """What a kernel multiplies.

    reduction   the sum; everything that uses it is the epilogue
    first       the operand that holds the rows, in the type that it is multiplied in (bfloat16, float16, float32)
    second      the operand that holds the columns, in the same type
    """

    reduction: Reduce
    first: Expr
    second: Expr
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    inner: tuple[Axis, ...]

    @cached_property
    def m(self) -> int:
        """Rows of one matrix of the batch."""
        return product(self.rows)

    @cached_property
    def n(self) -> int:
        """Columns of one matrix of the batch."""
        return product(self.columns)

    @cached_property
    def k(self) -> int:
        """Terms of a sum."""
        return product(self.inner)

    @cached_property
    def count(self) -> int:
        """Matrices of the batch."""
        return product(self.batch)

    @cached_property
    def second_in_lines(self) -> bool:
        """Whether the second operand is a plain load whose elements lie side by side along the sum or the columns."""
        load = self.second
        if not isinstance(load, Load) or load.mask is not None or any(isinstance(n, Load) for n in walk(load.index)):
            return False
        return 1 in (coefficient(load.index, self.inner[-1]), coefficient(load.index, self.columns[-1]))


def matmul_of(kernel: Kernel) -> Matmul | None:
    """The matrix product that `kernel` is; None where it is none."""
    found = _match(kernel)
    return found if isinstance(found, Matmul) else None


def why_no_matmul(kernel: Kernel) -> str:
    """Why `kernel` is no matrix product, in plain words; empty where it is one."""
    found = _match(kernel)
    return found if isinstance(found, str) else ""


def _match(kernel: Kernel) -> Matmul | str:
    if len(kernel.reduces) != 1 or kernel.reduces[0].combine != "sum":
        return "it has not one sum and no other reduction"
    (reduction,) = kernel.reduces
    if any(store.inner or store.mode != "set" for store in kernel.stores):
        return "it stores along the sum, or adds to memory"
    if kernel.checks_index:
        return "it checks an index"
    body = reduction.body
    if not (isinstance(body, Op) and body.name == "mul" and body.dtype is DType.FLOAT32):
        return "it sums no products of float32"
    one, two = (frozenset(free_axes(side)) for side in body.args)
    inner = set(kernel.inner)
    if not (inner <= one and inner <= two):
        return "an operand does not run along the sum"
    if set(kernel.parallel) - one - two:
        return "an axis enters neither operand"
    ordered = _by_stride(kernel)
    batch = tuple(axis for axis in ordered if axis in one and axis in two)
    alone = [axis for axis in ordered if axis not in batch]
    # The columns are those of the operand that holds the last axis: the one along which results lie side by side.
    first, second = body.args if alone and alone[-1] in two else body.args[::-1]
    columns = tuple(axis for axis in alone if axis in free_axes(second))
    rows = tuple(axis for axis in alone if axis not in columns)
    if not rows or not columns:
        return "it has no rows or no columns: it is a product with a vector"
    return Matmul(reduction, *_operands(first, second), batch, rows, columns, kernel.inner)


def _by_stride(kernel: Kernel) -> tuple[Axis, ...]:
    """The parallel axes in the order in which the results lie in memory, outermost first."""
    steps = {axis: coefficient(kernel.stores[0].index, axis) for axis in kernel.parallel}
    known = {axis: abs(step) for axis, step in steps.items() if step is not None}
    if len(known) != len(steps):
        return kernel.parallel
    return tuple(sorted(kernel.parallel, key=lambda axis: -known[axis]))


def _operands(first: Expr, second: Expr) -> tuple[Expr, Expr]:
    """The two operands in the type that they are multiplied in."""
    inside = [side.value for side in (first, second) if isinstance(side, Cast) and side.value.dtype.is_half]
    if len(inside) == 2 and inside[0].dtype is inside[1].dtype:
        return inside[0], inside[1]
    return first, second
