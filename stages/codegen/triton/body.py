"""The statements of a kernel: expressions of the loop IR as Triton assignments, each node once where it is needed.

Comes in: nodes of a `Kernel` and its `Tiling`. Goes out: lines of source. A value that does not vary along the inner
axes is computed once a program; one that does, in the loop over the row that asks for it (or, in a persistent kernel
and a pointwise one, in the one straight line there is). Loads are masked by the guards of the block, so a position that
is none of the kernel's never touches memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stages.codegen.triton import indices, ops
from stages.codegen.triton.tiling import NOWHERE, Dims, Tiling
from stages.ir.dtype import DType
from stages.ir.expr import Cast, Const, Expr, Load, Op, Reduce, Select, Var
from stages.ir.kernel import IRError, Kernel, Store
from stages.ir.ops import OPS, Rule

INDENT = "    "


class Body:
    """Collects the lines of one kernel's function; `prefix` sets its variables apart from those of another `Body`."""

    def __init__(self, kernel: Kernel, tiling: Tiling, wide: bool, prefix: str = "") -> None:
        self.kernel = kernel
        self.prefix = prefix
        self.tiling = tiling
        self.index_type = "tl.int64" if wide else "tl.int32"
        self.dims = _varying(kernel, tiling)
        self.lines: list[str] = []
        self._names: dict[int, str] = {}
        self._constants: dict[int, str] = {}
        self._reported: set[tuple[str, ...]] = set()
        self._in_range: dict[int, str] = {}
        self._loop: list[str] | None = None
        self._loop_names: dict[int, str] = {}
        self._count = 0

    # ---- where lines go ---------------------------------------------------------------------

    @contextmanager
    def loop(self, header: str, first: tuple[str, ...]) -> Iterator[None]:
        """What varies along the row and is asked for in here is computed inside a loop that starts with `first`.

        Everything else still goes before the loop.
        """
        with self.row(first) as lines:
            yield
        self.lines.append(header)
        self.lines.extend(INDENT + line for line in lines)

    @contextmanager
    def row(self, first: tuple[str, ...]) -> Iterator[list[str]]:
        """The lines of a loop as `loop` collects them, for a loop that is written elsewhere."""
        self._loop, self._loop_names = list(first), {}
        yield self._loop
        self._loop, self._loop_names = None, {}

    def statement(self, line: str, dims: Dims) -> None:
        """Add a line whose outcome varies along `dims`."""
        inside = self._loop is not None and self.tiling.inner in dims
        (self._loop if inside and self._loop is not None else self.lines).append(line)

    def assign(self, source: str, dims: Dims) -> str:
        """A new variable that holds `source`."""
        name = f"{self.prefix}v{self._count}"
        self._count += 1
        self.statement(f"{name} = {source}", dims)
        return name

    def guards(self, dims: Dims) -> list[str]:
        """The conditions under which a position along `dims` is one of the kernel's."""
        return [guard for dim, guard in self.tiling.guards.items() if dim in dims]

    # ---- values -----------------------------------------------------------------------------

    def value(self, root: Expr) -> str:
        """The variable that holds `root`, in `root.dtype` (bool as int1).

        Operands are computed first from a stack of our own: chains of fused operators may be long.
        """
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [] if self._known(node) else [child for child in self._operands(node) if not self._known(child)]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if not self._known(node):
                self._define(node)
        return self._name(root)

    def result(self, root: Expr) -> str:
        """`value` of what is stored or reduced."""
        name = self.value(root)
        self._report_anywhere(root)
        return name

    def bind(self, node: Expr, name: str) -> None:
        """Say which variable holds `node` from here on."""
        in_loop = self._loop is not None and self.tiling.inner in self.dims[id(node)]
        (self._loop_names if in_loop else self._names)[id(node)] = name

    def _known(self, node: Expr) -> bool:
        return id(node) in self._loop_names or id(node) in self._names or isinstance(node, Const)

    def _name(self, node: Expr) -> str:
        if isinstance(node, Const):
            return self.constant(node)
        name = self._loop_names.get(id(node)) or self._names[id(node)]
        return name

    def constant(self, node: Const) -> str:
        """A variable at the head of the function that holds a literal."""
        if id(node) not in self._constants:
            source = ops.literal(node.value, node.dtype)
            if node.dtype is DType.BFLOAT16:
                source = ops.conversion(ops.literal(node.value, DType.FLOAT32), DType.FLOAT32, DType.BFLOAT16)
            name = f"{self.prefix}c{len(self._constants)}"
            self.lines.append(f"{name} = {source}")
            self._constants[id(node)] = name
        return self._constants[id(node)]

    def _operands(self, node: Expr) -> tuple[Expr, ...]:
        """The nodes that have to be variables before `node` can be one."""
        if isinstance(node, Load):
            return (*indices.atoms(node.index), *(() if node.mask is None else (node.mask,)))
        if self._is_narrow(node):
            return ()
        return node.children

    def _is_narrow(self, node: Expr) -> bool:
        """Whether `node` takes loop indices as they are, without making int64 of them: a comparison, a conversion."""
        if isinstance(node, Cast):
            return indices.is_plain(node.value)
        if isinstance(node, Op) and OPS[node.name].rule is Rule.COMPARE and node.args[0].dtype is DType.INT64:
            plain = [indices.is_plain(arg) for arg in node.args]
            small = [isinstance(arg, Const) and abs(arg.value) <= indices.INT32[1] for arg in node.args]
            return any(plain) and all(one or other for one, other in zip(plain, small, strict=True))
        return node.dtype is DType.INT64 and indices.is_plain(node)

    def _define(self, node: Expr) -> None:
        if isinstance(node, Load):
            source = self._load(node)
        elif isinstance(node, Reduce):
            raise IRError(f"kernel '{self.kernel.name}': a {node.combine} is used before it was computed")
        else:
            for child in self._operands(node):
                self._report_anywhere(child)
            source = self._source(node)
        self.bind(node, self.assign(source, self.dims[id(node)]))
        if isinstance(node, Op) and node.name == "bounded":
            self._keep_in_range(node)

    def _source(self, node: Expr) -> str:
        if isinstance(node, Cast):
            narrow = self._is_narrow(node)
            value = f"({self.index(node.value)})" if narrow else self._name(node.value)
            return ops.conversion(value, node.value.dtype, node.dtype)
        if self._is_narrow(node):
            if node.dtype is DType.INT64:
                return f"({self.index(node)}).to(tl.int64)"
            assert isinstance(node, Op)
            return ops.operator(node.name, DType.INT64, *(f"({self.index(arg)})" for arg in node.args))
        if isinstance(node, Select):
            return f"tl.where({', '.join(map(self._name, node.children))})"
        assert isinstance(node, Op)
        return ops.operator(node.name, node.args[0].dtype, *map(self._name, node.args))

    # ---- indices and memory -----------------------------------------------------------------

    def index(self, node: Expr) -> str:
        """Source of an index in the kernel's index type; its atoms are variables already."""
        if isinstance(node, Const):
            return str(node.value)
        if isinstance(node, Var):
            return self.tiling.names[node.axis]
        if not indices.is_arithmetic(node):
            return self._name(node) if self.index_type == "tl.int64" else f"{self._name(node)}.to(tl.int32)"
        assert isinstance(node, Op)
        left, right = (self.index(arg) for arg in node.args)
        if node.name in ("floordiv", "mod") and not indices.is_floor_safe(node):
            return ops.operator(node.name, DType.INT64, left, right)
        return indices.infix(node, left, right)

    def pointer(self, buffer: str, index: Expr, dims: Dims) -> str:
        """Source of the addresses of `buffer[index]`, one for each position along `dims`."""
        source = self.index(index)
        if self.dims[id(index)] == dims:
            return f"{buffer} + ({source})" if indices.is_arithmetic(index) else f"{buffer} + {source}"
        shape = self.tiling.extent_of(dims)
        if isinstance(index, Const):
            return f"{buffer} + tl.full({shape}, {source}, {self.index_type})"
        return f"{buffer} + tl.broadcast_to({source}, {shape})"

    def _load(self, node: Load) -> str:
        dims = self.dims[id(node)]
        conditions = self.guards(dims)
        if node.mask is not None:
            conditions.append(self._name(node.mask))
        for atom in indices.atoms(node.index):
            self._report(atom, conditions, dims)
        arguments = [self.pointer(node.buffer.name, node.index, dims)]
        if conditions:
            arguments.extend([" & ".join(conditions), f"other={self._other(node)}"])
        source = f"tl.load({', '.join(arguments)})"
        return f"{source} != 0" if node.dtype is DType.BOOL else source

    def _other(self, node: Load) -> str:
        if node.other is None or repr(node.other.value) in ("0", "0.0", "False"):
            return "0"
        return "1" if node.dtype is DType.BOOL else self.constant(node.other)

    def store(self, store: Store, value: str) -> None:
        """Write `value`, a variable, at every position of the store."""
        whole = frozenset(range(len(self.tiling.shape)))
        dims = whole if store.inner or self.tiling.inner is None else self.tiling.row_dims
        conditions = self.guards(dims)
        for atom in indices.atoms(store.index):
            self._report(atom, conditions, dims)
        if store.buffer.dtype is DType.BOOL:
            value = f"{value}.to(tl.uint8)"
        arguments = [self.pointer(store.buffer.name, store.index, dims), value]
        if conditions:
            arguments.append(f"mask={' & '.join(conditions)}")
        if store.mode == "add":
            ops.check_atomic(store.buffer.dtype, store.buffer.name)
            # Addition is all that is asked for: nobody reads the buffer before the launch ends.
            self.statement(f'tl.atomic_add({", ".join(arguments)}, sem="relaxed")', dims)
        else:
            self.statement(f"tl.store({', '.join(arguments)})", dims)

    def operands_of_store(self, store: Store) -> str:
        """Compute all that `store` needs; the variable of its value."""
        for atom in indices.atoms(store.index):
            self.value(atom)
        return self.result(store.value)

    # ---- bounds checks ----------------------------------------------------------------------

    def _keep_in_range(self, node: Op) -> None:
        """Replace a wrapped index by 0 where it is out of range, and remember where that was."""
        dims, wrapped, size = self.dims[id(node)], self._name(node), node.args[1]
        assert isinstance(size, Const)
        self._in_range[id(node)] = self.assign(f"({wrapped} >= 0) & ({wrapped} < {size.value})", dims)
        self.bind(node, self.assign(f"tl.where({self._in_range[id(node)]}, {wrapped}, 0)", dims))

    def _report_anywhere(self, node: Expr) -> None:
        """`_report` at every position of the kernel: an index that is used as a number, not to load."""
        dims = self.dims[id(node)]
        self._report(node, self.guards(dims), dims)

    def _report(self, node: Expr, conditions: list[str], dims: Dims) -> None:
        """Set the error flag where `node` is a bounds-checked index that is out of range and `conditions` hold."""
        if not (isinstance(node, Op) and node.name == "bounded"):
            return
        in_range = self._in_range[id(node)]
        if (in_range, *conditions) in self._reported:
            return
        self._reported.add((in_range, *conditions))
        shape = self.tiling.extent_of(dims)
        pointer = f"error + tl.full({shape}, 0, tl.int32)" if shape else "error"
        self.statement(f"tl.store({pointer}, 1, mask={' & '.join([f'~{in_range}', *conditions])})", dims)


def _varying(kernel: Kernel, tiling: Tiling) -> dict[int, Dims]:
    """By node, the dimensions of the block along which its value varies."""
    found: dict[int, Dims] = {}
    for node in kernel.nodes:
        if isinstance(node, Var):
            found[id(node)] = tiling.dims[node.axis]
        elif isinstance(node, Reduce):
            found[id(node)] = tiling.row_dims
        else:
            found[id(node)] = NOWHERE.union(*(found[id(child)] for child in node.children))
    return found
