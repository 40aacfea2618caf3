"""Matrix products: one sum of products for each element of the result, in the form that `ir.matmul` recognises.

Operands of a half type are rounded to it before they are multiplied, as the graph has them, whatever computes them; the
sums run in float32 and the result is not rounded until it is stored (unless `emulate_precision_casts`).
"""

from __future__ import annotations

from stages.fusion.lowering.context import Context
from stages.fusion.lowering.registry import lowers
from stages.fusion.lowering.value import At, NotFusable, Position, Value, broadcast_at, rounded, stored_type
from stages.ir.dtype import DType
from stages.ir.expr import Cast, Expr, Number, const, op
from stages.ir.library_flags import tf32_matmuls


@lowers("mm bmm", template=True)
def matmul(context: Context, first: Value, second: Value) -> Value:
    """first [..., m, k] @ second [..., k, n], without or with one batch dimension."""
    return context.result(_product(context, first, second))


@lowers("addmm baddbmm", template=True)
def add_matmul(
    context: Context, added: Value, first: Value, second: Value, beta: Number = 1, alpha: Number = 1
) -> Value:
    """beta * added + alpha * (first @ second); with beta 0 `added` is not read, so its NaNs do not count."""
    product = _product(context, first, second)

    def at(position: Position) -> Expr:
        total = _scaled(product(position), alpha)
        return total if beta == 0 else op("add", total, _scaled(broadcast_at(added, position), beta))

    return context.result(at)


def _product(context: Context, first: Value, second: Value) -> At:
    kind = stored_type(first.dtype)
    if second.dtype != first.dtype or kind.compute is not DType.FLOAT32:
        raise NotFusable(f"a product of {kind} and {stored_type(second.dtype)} is left to torch's library")
    if kind is DType.FLOAT32 and tf32_matmuls():
        raise NotFusable("a product in TF32 is left to torch's library")
    *batch, m, k = first.shape
    rows = context.rows((*batch, m, second.shape[-1], k), first.ndim)

    def term(position: Position) -> Expr:
        *outer, row, column, inner = position
        return op("mul", _operand(first, (*outer, row, inner)), _operand(second, (*outer, inner, column)))

    return rows.reduce("sum", term)


def _operand(tensor: Value, position: Position) -> Expr:
    """An element as the product reads it: rounded to the tensor's type, unless it comes from memory and is."""
    element = tensor.at(position)
    stored = stored_type(tensor.dtype)
    if not stored.is_half or (isinstance(element, Cast) and element.value.dtype is stored):
        return element
    return rounded(element, tensor.dtype)


def _scaled(value: Expr, factor: Number) -> Expr:
    return value if factor == 1 else op("mul", value, const(float(factor), DType.FLOAT32))
