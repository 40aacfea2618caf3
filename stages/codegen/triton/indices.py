"""Index arithmetic in Triton: int32 wherever that is known to hold it.

Comes in: indices of loads and stores. Goes out: whether a kernel needs int64, and which parts of an index are plain
arithmetic (printed as such) and which are values (loaded, selected, ...).
"""

from __future__ import annotations

from collections.abc import Iterator

from stages.ir.dtype import DType
from stages.ir.expr import Const, Expr, Load, Op, Var, walk
from stages.ir.index import bounds
from stages.ir.kernel import Kernel

INT32 = (-(1 << 31), (1 << 31) - 1)
# Masked positions past the end are computed with too; a block is smaller than this.
MARGIN = 1 << 21

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


def is_arithmetic(node: Expr) -> bool:
    """Whether `node` is a step of index arithmetic: +, -, *, or a division by a positive number."""
    if not isinstance(node, Op) or node.name not in _SIGNS:
        return False
    if node.name in ("floordiv", "mod"):
        return isinstance(node.args[1], Const) and node.args[1].value > 0
    return True


def parts(index: Expr) -> Iterator[Expr]:
    """The nodes of `index` down to its atoms: what is neither a number, a loop index nor arithmetic on such."""
    stack = [index]
    while stack:
        node = stack.pop()
        yield node
        if is_arithmetic(node):
            stack.extend(node.children)


def atoms(index: Expr) -> list[Expr]:
    """The parts of `index` that are values of their own."""
    return [node for node in parts(index) if not (isinstance(node, (Const, Var)) or is_arithmetic(node))]


def _fits(node: Expr) -> bool:
    span = bounds(node)
    return span is not None and INT32[0] <= span[0] and span[1] <= INT32[1]


def is_plain(expr: Expr) -> bool:
    """Whether `expr` is int64 arithmetic on loop indices alone, with every step within int32, and no mere number."""
    if expr.dtype is not DType.INT64:
        return False
    found = list(parts(expr))
    return any(isinstance(node, Var) for node in found) and all(
        isinstance(node, (Const, Var)) or (is_arithmetic(node) and _fits(node)) for node in found
    )


def needs_int64(kernel: Kernel) -> bool:
    """Whether some index, or the count of positions, may not fit int32."""
    if max(kernel.rows, kernel.row_size) > INT32[1] - MARGIN:
        return True
    indices = {id(node.index): node.index for node in walk(*kernel.roots) if isinstance(node, Load)}
    indices.update({id(store.index): store.index for store in kernel.stores})
    return not all(_fits(node) for index in indices.values() for node in parts(index))


def infix(node: Op, left: str, right: str) -> str:
    """The source of arithmetic over the sources of its operands, with the brackets that Python needs."""
    strength = _strength(node)
    if _strength(node.args[0]) < strength:
        left = f"({left})"
    if _strength(node.args[1]) < strength or (_strength(node.args[1]) == strength and node.name != "add"):
        right = f"({right})"
    return f"{left} {_SIGNS[node.name]} {right}"


def _strength(node: Expr) -> int:
    """How tightly the source of `node` holds together."""
    if not isinstance(node, Op) or not is_arithmetic(node):
        return 3
    if node.name in ("floordiv", "mod") and not is_floor_safe(node):
        return 3  # printed as a call
    return 1 if node.name in ("add", "sub") else 2


def is_floor_safe(node: Op) -> bool:
    """Whether the dividend is never negative, so that C's division is the floor division."""
    span = bounds(node.args[0])
    return span is not None and span[0] >= 0
