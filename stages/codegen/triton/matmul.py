"""Matrix products in Triton: a tile of the result a program, `tl.dot` along the sums, the epilogue on the tile.

Comes in: a kernel that `ir.matmul` recognises. Goes out: the lines of its function, how many programs run, and the
memory that the launch keeps from one call to the next.

Programs are numbered batch by batch, part of the sums by part, tile by tile; `group` rows of tiles are walked column
by column, so that programs running at one time share operands in L2. With `split_k` each program stores its partial
sums in float32 and counts itself in; the one that comes last adds the parts up in their order (so the result does not
depend on who that is), sets the count back to zero for the next launch, and does the epilogue. Nothing has to be
cleared in between.

Under `launch_pdl` with `prefetch` the second operand, a weight, is brought into L2 before the wait for the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stages.codegen.triton.body import INDENT, Body
from stages.codegen.triton.tiling import LARGEST_BLOCK, LARGEST_GRID, NOWHERE, Dims, Tiling, split_lines
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Expr, Load
from stages.ir.index import coefficient
from stages.ir.kernel import IRError, Kernel
from stages.ir.matmul import Matmul
from stages.ir.schedule import Schedule

LINE_BYTES = 128  # what one prefetch brings in
# Products of float32 are added up in runs of about so many terms, and the runs then: one chain of thousands of terms
# rounds at every one of them, and has two to three times the error of the library's sums.
RUN_TERMS = 128
WHOLE: Dims = frozenset({0, 1})


@dataclass
class Printed:
    """The function of a product.

    scratch   by parameter, the element type and count of memory that is zero before the first launch
    """

    lines: list[str]
    programs: int
    scratch: dict[str, tuple[str, int]] = field(default_factory=dict)


def print_matmul(kernel: Kernel, product: Matmul, schedule: Schedule, wide: bool) -> Printed:
    """The function of `kernel` under `schedule`. Raises `IRError` for a schedule that it cannot have."""
    _check(kernel, schedule)
    return _Printer(kernel, product, schedule, wide).print()


def _check(kernel: Kernel, schedule: Schedule) -> None:
    def refuse(why: str) -> None:
        raise IRError(f"kernel '{kernel.name}': {schedule.text()}: {why}")

    for name in ("tile_m", "tile_n", "tile_k", "num_warps"):
        size = getattr(schedule, name)
        if size < 1 or size & (size - 1):
            refuse(f"{name} is {size}, not a power of two")
    if min(schedule.tile_m, schedule.tile_n, schedule.tile_k) < 16:
        refuse("a tile of a matrix product has at least 16 positions along each side")
    if schedule.tile_m * schedule.tile_n > LARGEST_BLOCK:
        refuse(f"a tile has more than {LARGEST_BLOCK} positions")
    if min(schedule.split_k, schedule.group, schedule.num_stages) < 1:
        refuse("split_k, group and num_stages are at least 1")
    if schedule.prefetch and not schedule.launch_pdl:
        refuse("prefetch without launch_pdl has nothing to wait for")


class _Printer:
    def __init__(self, kernel: Kernel, product: Matmul, schedule: Schedule, wide: bool) -> None:
        self.kernel, self.product, self.schedule, self.wide = kernel, product, schedule, wide
        self.tiles = _ceil(product.m, schedule.tile_m), _ceil(product.n, schedule.tile_n)
        self.chunk = _ceil(_ceil(product.k, schedule.tile_k), schedule.split_k) * schedule.tile_k
        self.names = {
            **{axis: f"i{count}" for count, axis in enumerate(kernel.parallel)},
            **{axis: f"r{count}" for count, axis in enumerate(kernel.inner)},
        }
        self.guards = {
            "row": "row_inside" if product.m % schedule.tile_m else "",
            "column": "column_inside" if product.n % schedule.tile_n else "",
            "inner": "inside" if self.chunk * schedule.split_k > product.k else "",
        }

    @property
    def programs(self) -> int:
        return self.tiles[0] * self.tiles[1] * self.schedule.split_k * self.product.count

    def print(self) -> Printed:
        if self.programs > LARGEST_GRID:
            raise IRError(f"kernel '{self.kernel.name}': {self.schedule.text()} makes {self.programs} programs")
        lines = [*self.place(), *self.positions()]
        if self.schedule.prefetch:
            lines.extend(self.prefetch())
        if self.schedule.launch_pdl:
            lines.extend(WAIT)
        lines.extend(self.sums())
        epilogue = self.epilogue()
        if self.schedule.split_k == 1:
            return Printed([*lines, *epilogue], self.programs)
        lines.extend(self.exchange())
        lines.extend(INDENT + line for line in epilogue)
        tile = self.schedule.tile_m * self.schedule.tile_n
        counters = self.programs // self.schedule.split_k
        return Printed(
            lines, self.programs, {"partials": ("float32", self.programs * tile), "arrived": ("int32", counters)}
        )

    # ---- which tile, and where it lies ----

    def place(self) -> list[str]:
        """The row and column of the tile, the part of the sums, and the matrix of the batch of this program."""
        down, across = self.tiles
        split, group = self.schedule.split_k, min(self.schedule.group, down)
        lines = ["program = tl.program_id(0)"]
        lines.append(f"tile = program % {down * across}" if self.programs > down * across else "tile = program")
        if group == 1:
            lines.extend([f"tile_row = tile // {across}", f"tile_column = tile % {across}"])
        else:
            lines.append(f"first_row = tile // {group * across} * {group}")
            lines.append(f"height = min({down} - first_row, {group})")
            lines.append(f"tile_row = first_row + tile % {group * across} % height")
            lines.append(f"tile_column = tile % {group * across} // height")
        if split > 1:
            lines.append(f"part = program // {down * across} % {split}")
        if self.product.count > 1:
            lines.append(f"matrix = program // {down * across * split}{self.widen}")
        return lines

    @property
    def widen(self) -> str:
        return ".to(tl.int64)" if self.wide else ""

    def positions(self) -> list[str]:
        """The index of every parallel axis, rows down and columns across."""
        schedule, product = self.schedule, self.product
        lines = [f"row = (tile_row * {schedule.tile_m} + tl.arange(0, {schedule.tile_m})[:, None]){self.widen}"]
        lines.append(
            f"column = (tile_column * {schedule.tile_n} + tl.arange(0, {schedule.tile_n})[None, :]){self.widen}"
        )
        for name, size in (("row", product.m), ("column", product.n)):
            if self.guards[name]:
                lines.append(f"{self.guards[name]} = {name} < {size}")
        lines.extend(split_lines("row", product.rows, self.names))
        lines.extend(split_lines("column", product.columns, self.names))
        lines.extend(split_lines("matrix", product.batch, self.names))
        return lines

    # ---- the sums ----

    def operand(self, expr: Expr, side: str) -> Body:
        """A body that computes tiles of one operand: of the first, rows by terms, of the second, terms by columns."""
        schedule, first = self.schedule, side == "a"
        shape = (schedule.tile_m, schedule.tile_k) if first else (schedule.tile_k, schedule.tile_n)
        inner = 1 if first else 0
        names = {**self.names, **{axis: f"{self.names[axis]}_{side}" for axis in self.product.inner}}
        guards = {1 - inner: self.guards["row" if first else "column"]}
        if self.guards["inner"]:
            guards[inner] = f"inside_{side}"
        tiling = self.tiling(shape, names, inner, guards)
        return Body(self.kernel, tiling, self.wide, f"{side}_")

    def tiling(
        self, shape: tuple[int, int], names: dict[Axis, str], inner: int | None, guards: dict[int, str]
    ) -> Tiling:
        """A block of two dimensions of the three: rows, columns and terms."""
        product = self.product
        row, column = (0, 1) if inner is None else (1 - inner, 1 - inner)
        dims: dict[Axis, Dims] = dict.fromkeys(product.batch, NOWHERE)
        dims |= dict.fromkeys(product.rows, frozenset({row})) | dict.fromkeys(product.columns, frozenset({column}))
        dims |= dict.fromkeys(product.inner, NOWHERE if inner is None else frozenset({inner}))
        found = {dim: guard for dim, guard in guards.items() if guard}
        return Tiling(shape, self.programs, names, dims, (), found, (), inner)

    def sums(self) -> list[str]:
        """The sums of this program's tile, `total`."""
        schedule, product = self.schedule, self.product
        sides = [
            (product.first, self.operand(product.first, "a"), "a"),
            (product.second, self.operand(product.second, "b"), "b"),
        ]
        inside: list[str] = []
        operands = []
        for expr, body, side in sides:
            with body.row(self.terms(body, side)) as lines:
                operands.append(self.masked(body, expr))
            inside.extend(lines)
        hoisted = [line for _, body, _ in sides for line in body.lines]
        zeros = f"tl.zeros([{schedule.tile_m}, {schedule.tile_n}], tl.float32)"
        terms = min(self.chunk, product.k)
        loop = f"for start in tl.range(0, {terms}, {schedule.tile_k}, num_stages={schedule.num_stages}):"
        lines = [*hoisted, f"total = {zeros}"]
        run = max(2, RUN_TERMS // schedule.tile_k) * schedule.tile_k
        if product.first.dtype is not DType.FLOAT32 or terms <= run:
            return [*lines, loop, *(INDENT + line for line in (*inside, f"total = {self.dot(operands, 'total')}"))]
        inside.append(f"sums = {self.dot(operands, 'sums')}")
        inside.append(f"whole = (start + {schedule.tile_k}) % {run} == 0")
        inside.append("total = tl.where(whole, total + sums, total)")
        inside.append("sums = tl.where(whole, 0.0, sums)")
        return [*lines, f"sums = {zeros}", loop, *(INDENT + line for line in inside), "total += sums"]

    def dot(self, operands: Sequence[str], sums: str) -> str:
        """`sums` plus the product of two tiles."""
        a, b = operands
        if self.product.first.dtype is DType.FLOAT32:
            return f'tl.dot({a}, {b}, {sums}, input_precision="ieee")'
        return f"libm.dot({a}, {b}, {sums})"

    def terms(self, body: Body, side: str) -> tuple[str, ...]:
        """The first lines of the loop: the indices of the terms at hand as one operand lays them out."""
        inner = body.tiling.inner
        assert inner is not None
        begin = f"part * {self.chunk} + start" if self.schedule.split_k > 1 else "start"
        lines = [f"term_{side} = {begin} + {body.tiling.lanes(inner)}{self.widen}"]
        if inner in body.tiling.guards:
            lines.append(f"{body.tiling.guards[inner]} = term_{side} < {self.product.k}")
        return (*lines, *split_lines(f"term_{side}", self.product.inner, body.tiling.names))

    def masked(self, body: Body, expr: Expr) -> str:
        """The tile of an operand, zero past the end of the sums: what is computed there need not be a number."""
        source, dims = body.result(expr), body.dims[id(expr)]
        inner = body.tiling.inner
        if inner in body.tiling.guards and not (isinstance(expr, Load) and expr.mask is None):
            source = body.assign(f"tl.where({body.tiling.guards[inner]}, {source}, 0.0)", dims)
        if dims != WHOLE:
            source = body.assign(f"tl.broadcast_to({source}, {list(body.tiling.shape)})", WHOLE)
        return source

    def exchange(self) -> list[str]:
        """Store the partial sums; go on in the program that comes last, with all of them added up in order."""
        schedule, (down, across) = self.schedule, self.tiles
        tiles = down * across
        shape = f"[{schedule.tile_m}, {schedule.tile_n}]"
        place = (
            f"tl.arange(0, {schedule.tile_m})[:, None] * {schedule.tile_n} + tl.arange(0, {schedule.tile_n})[None, :]"
        )
        size = schedule.tile_m * schedule.tile_n
        matrix = f"program // {tiles * schedule.split_k} * {tiles} + tile" if self.product.count > 1 else "tile"
        return [
            f"place = {place}",
            f"shared = {matrix}",
            f"mine = partials + (shared * {schedule.split_k} + part).to(tl.int64) * {size}",
            "tl.store(mine + place, total)",
            "tl.debug_barrier()",
            'before = tl.atomic_add(arrived + shared, 1, sem="acq_rel")',
            f"if before == {schedule.split_k - 1}:",
            f"{INDENT}tl.store(arrived + shared, 0)",
            f"{INDENT}others = partials + shared.to(tl.int64) * {size * schedule.split_k}",
            f"{INDENT}total = tl.zeros({shape}, tl.float32)",
            f"{INDENT}for other in tl.static_range({schedule.split_k}):",
            f'{INDENT}{INDENT}total += tl.load(others + other * {size} + place, cache_modifier=".cg")',
        ]

    # ---- the stores, and what is read ahead ----

    def epilogue(self) -> list[str]:
        """What the stores make of the sums."""
        schedule = self.schedule
        guards = {0: self.guards["row"], 1: self.guards["column"]}
        body = Body(self.kernel, self.tiling((schedule.tile_m, schedule.tile_n), self.names, None, guards), self.wide)
        body.bind(self.product.reduction, "total")
        values = [body.operands_of_store(store) for store in self.kernel.stores]
        for store, value in zip(self.kernel.stores, values, strict=True):
            body.store(store, value)
        return body.lines

    def prefetch(self) -> list[str]:
        """Bring this program's part of the second operand into L2, a line of memory at a time.

        Only an operand that is a plain load with unit stride along one side has lines to speak of.
        """
        load = self.product.second
        if not self.product.second_in_lines:
            raise IRError(f"kernel '{self.kernel.name}': {self.schedule.text()}: its second operand has no whole lines")
        assert isinstance(load, Load)
        schedule, product = self.schedule, self.product
        step = LINE_BYTES // load.dtype.itemsize
        along_terms = coefficient(load.index, product.inner[-1]) == 1
        terms, columns = min(self.chunk, product.k), schedule.tile_n
        shape = (_ceil(terms, step), columns) if along_terms else (terms, _ceil(columns, step))
        block = (_power(shape[0]), _power(shape[1]))
        names = {axis: f"{name}_p" for axis, name in self.names.items()} | {
            axis: self.names[axis] for axis in product.batch
        }
        body = Body(self.kernel, self.tiling(block, names, 0, {}), self.wide, "p_")
        begin = f"part * {self.chunk} + " if schedule.split_k > 1 else ""
        scale = (f" * {step}", "") if along_terms else ("", f" * {step}")
        lines = [f"term_p = {begin}(tl.arange(0, {block[0]}){scale[0]})[:, None]{self.widen}"]
        start = f"tile_column * {schedule.tile_n} + "
        lines.append(f"column_p = ({start}(tl.arange(0, {block[1]}){scale[1]})[None, :]){self.widen}")
        lines.extend(split_lines("term_p", product.inner, names))
        lines.extend(split_lines("column_p", product.columns, names))
        conditions = [f"(term_p < {product.k})", f"(column_p < {product.n})"]
        conditions.extend(
            f"(tl.arange(0, {size}){index} < {bound})"
            for size, index, bound in ((block[0], "[:, None]", shape[0]), (block[1], "[None, :]", shape[1]))
            if size > bound
        )
        pointer = body.pointer(load.buffer.name, load.index, WHOLE)
        return [*lines, *body.lines, f"device.prefetch({pointer}, {' & '.join(conditions)})"]


# The step before has ended and what it wrote is there; the step after may take free processors from here on.
WAIT = ("device.gdc_wait()", "device.gdc_launch_dependents()")


def _ceil(size: int, step: int) -> int:
    return -(-size // step)


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
