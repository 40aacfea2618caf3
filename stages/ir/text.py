"""The text form of kernels: one node a line, operands before users, equal for equal kernels in any process."""

from __future__ import annotations

from stages.ir.expr import Cast, Const, Expr, Load, Op, Reduce, Select, Var
from stages.ir.index import text as index_text
from stages.ir.kernel import Kernel


def kernel_text(kernel: Kernel) -> str:
    """`kernel` as text; see `kernel.py` for an example. Values are numbered in order of evaluation."""
    params = ", ".join(f"{b.name}: {b.dtype}[{b.size}]" for b in kernel.buffers)
    lines = [f"kernel {kernel.name}({params})"]
    loops = [
        f"{word} " + " ".join(f"{axis.name}:{axis.extent}" for axis in axes)
        for word, axes in (("parallel", kernel.parallel), ("inner", kernel.inner))
        if axes
    ]
    if loops:
        lines.append("  " + "  ".join(loops))
    names: dict[int, str] = {}

    def visit(node: Expr) -> str:
        if isinstance(node, Const):
            return f"{node.value!r}:{node.dtype}"
        if isinstance(node, Var):
            return node.axis.name
        if id(node) not in names:
            line = describe(node)
            names[id(node)] = f"%{len(names)}"
            lines.append(f"  {names[id(node)]} = {line}")
        return names[id(node)]

    def place(index: Expr) -> str:
        """An index in one piece if it is plain arithmetic, else with its loads as values of their own."""
        return index_text(index) if _plain(index) else visit(index)

    def describe(node: Expr) -> str:
        if isinstance(node, Op):
            return f"{node.name} " + ", ".join(map(visit, node.args))
        if isinstance(node, Cast):
            return f"cast {visit(node.value)} to {node.dtype}"
        if isinstance(node, Select):
            return f"select {visit(node.condition)}, {visit(node.yes)}, {visit(node.no)}"
        if isinstance(node, Load):
            base = f"load {node.buffer.name}[{place(node.index)}]"
            if node.mask is None or node.other is None:
                return base
            return f"{base} where {visit(node.mask)} else {node.other.value!r}"
        assert isinstance(node, Reduce)
        return f"{node.combine} over {' '.join(axis.name for axis in node.axes)} of {visit(node.body)}"

    for store in kernel.stores:
        value, index = visit(store.value), place(store.index)
        sign = "=" if store.mode == "set" else "+="
        over = f"  over {' '.join(axis.name for axis in kernel.inner)}" if store.inner else ""
        lines.append(f"  {store.buffer.name}[{index}] {sign} {value}{over}")
    return "\n".join(lines) + "\n"


def _plain(index: Expr) -> bool:
    from stages.ir.expr import walk

    return all(
        isinstance(node, (Const, Var)) or (isinstance(node, Op) and node.name in ("add", "mul", "floordiv", "mod"))
        for node in walk(index)
    )
