"""(Kernel, Schedule) -> C++: one function over a range of work items, and the entry point that shares them out.

    static int k_..._items(void *const *buffers, int64_t begin, int64_t end)     0, or 1 where an index was out of range
    ENTRY int k_...(void *const *buffers, int threads)                           the same, over all of them

An item is a row, or a tile of positions where the lanes lie along a parallel axis; see `plan.py`. A loop over lanes is
printed twice: for full vectors, and once more for the lanes that are left, under another `lanes`.
"""

from __future__ import annotations

from stages.codegen.cpp.blocks import Blocks, Value
from stages.codegen.cpp.expressions import Expressions
from stages.codegen.cpp.operators import C_TYPES
from stages.codegen.cpp.plan import Pass, Plan, guards, plan
from stages.codegen.cpp.reductions import Accumulator, Blocking, blocking, needs_blocks
from stages.codegen.cpp.split import Split, split
from stages.ir.expr import Axis, Expr
from stages.ir.kernel import Kernel, Store, product
from stages.ir.schedule import Schedule
from stages.ir.text import kernel_text


def print_kernel(kernel: Kernel, schedule: Schedule, symbol: str = "") -> str:
    """The source of `kernel` under `schedule`, whose entry point is called `symbol` (by default after the hash)."""
    symbol = symbol or f"k_{kernel.hash}"
    if (parts := split(kernel, schedule)) is not None:
        return _print_split(kernel, parts, schedule, symbol)
    return _Printer(kernel, schedule, symbol).print()


def _print_split(kernel: Kernel, parts: Split, schedule: Schedule, symbol: str) -> str:
    """Both parts, and an entry point that runs one after the other with the partial results on its stack."""
    addresses = {buffer: f"buffers[{number}]" for number, buffer in enumerate(kernel.buffers)}
    addresses |= {buffer: buffer.name for buffer in parts.partials}
    lines = [f"{C_TYPES[buffer.dtype]} {buffer.name}[{buffer.size}];" for buffer in parts.partials]
    calls, sources = [], []
    for name, part in (("slices", parts.slices), ("rest", parts.rest)):
        sources.append(_Printer(part, schedule, f"{symbol}_{name}").print())
        lines.append(f"void *const {name}[] = {{{', '.join(addresses[buffer] for buffer in part.buffers)}}};")
        calls.append(f"{symbol}_{name}({name}, threads)")
    lines.append(f"const int failed = {calls[0]};")
    lines.append(f"return {calls[1]} | failed;")
    body = "".join(f"  {line}\n" for line in lines)
    return "\n".join([*sources, f"ENTRY int {symbol}(void *const *buffers, int threads) {{\n{body}}}\n"])


class _Printer:
    def __init__(self, kernel: Kernel, schedule: Schedule, symbol: str) -> None:
        self.kernel = kernel
        self.schedule = schedule
        self.symbol = symbol
        self.plan: Plan = plan(kernel, schedule)
        self.blocks = Blocks(f"static int {symbol}_items(void *const *buffers, int64_t begin, int64_t end)")
        self.expressions = Expressions(self.blocks, self.plan.lane_axis)
        self.kept: dict[Expr, str] = {}

    def print(self) -> str:
        comment = "".join(f"// {line}\n" for line in kernel_text(self.kernel).splitlines())
        self._declare()
        self._items()
        self.blocks.add("return failed;" if self.kernel.checks_index else "return 0;")
        return f"{comment}// {self.schedule.text()}\n{self.blocks.finish()}\n{self._entry()}"

    def _entry(self) -> str:
        count, grain = self.plan.count, self.plan.grain
        call = f"{self.symbol}_items(buffers, 0, {count})"
        if self.schedule.threads != 1 and count >= 2 * grain:
            body = f"[=](int64_t begin, int64_t end) {{ return {self.symbol}_items(buffers, begin, end); }}"
            call = f"parallel_for(threads, {count}, {grain}, {body})"
        return f"ENTRY int {self.symbol}(void *const *buffers, int threads) {{\n  return {call};\n}}\n"

    def _declare(self) -> None:
        kernel, add = self.kernel, self.blocks.add
        for number, buffer in enumerate(kernel.buffers):
            kind = C_TYPES[buffer.dtype] if buffer in kernel.outputs else f"const {C_TYPES[buffer.dtype]}"
            add(f"{kind} *{buffer.name} = ({kind} *)buffers[{number}];")
        add(f"constexpr Lanes<{self.plan.width}, {self.plan.lanes}> lanes{{}};")
        for node in (node for each in self.plan.passes for node in each.keeps):
            self.kept[node] = self.blocks.fresh("keep")
            size = kernel.row_size * (1 if self.plan.lanes_in_row else self.plan.lanes)
            add(f"Scratch<{C_TYPES[node.dtype]}, {size}> {self.kept[node]};")
        if kernel.checks_index:
            add("int failed = 0;")

    # ---- items ---------------------------------------------------------------------------

    def _items(self) -> None:
        """The loop over this call's share, in which every parallel axis but the lanes' has its variable."""
        tiles = self.plan.tiles
        counters = [(axis.name, axis.extent) for axis in self.plan.items] + ([("tile", tiles)] if tiles > 1 else [])
        if not counters:
            self._item()
            return
        if len(counters) == 1:
            name = counters[0][0]
            self.blocks.open(f"for (int64_t {name} = begin; {name} < end; ++{name})", *self.plan.items)
            self._item()
            self.blocks.close()
            return
        rest = "begin"
        for name, extent in reversed(counters):
            first = (name, extent) == counters[0]
            self.blocks.add(f"int64_t {name} = {rest};" if first else f"int64_t {name} = {rest} % {extent};")
            rest = f"{rest} / {extent}"
        self.blocks.open("for (int64_t item = begin; item < end; ++item)", *self.plan.items)
        self._item()
        for depth, (name, extent) in enumerate(reversed(counters)):
            last = depth == len(counters) - 1
            self.blocks.add(f"++{name};" if last else f"if (++{name} == {extent}) {{ {name} = 0;")
        self.blocks.add("}" * (len(counters) - 1))
        self.blocks.close()

    def _item(self) -> None:
        axis = self.plan.lane_axis
        if axis is None or self.plan.lanes_in_row:
            self._row()
            return
        full = axis.extent // self.plan.lanes * self.plan.lanes
        tiles, tile = self.plan.tiles, self.plan.tile
        if full:
            first, last = "0", str(full)
            if tiles > 1:
                first, last = "first", "last"
                self.blocks.add(f"const int64_t first = tile * {tile}, last = least(first + {tile}, {full});")
            self._lane_loop(axis, first, last)
            self._row()
            self.blocks.close()
        if full < axis.extent:
            self._lane_rest(axis, full, f"if (tile == {tiles - 1})" if tiles > 1 else "")
            self._row()
            self.blocks.close()

    def _lane_loop(self, axis: Axis, first: str, last: str) -> None:
        self.blocks.open(
            f"for (int64_t {axis.name} = {first}; {axis.name} < {last}; {axis.name} += {self.plan.lanes})", axis
        )

    def _lane_rest(self, axis: Axis, full: int, head: str) -> None:
        """A block for the last, incomplete vector, no longer than it has to be but of whole SIMD operations."""
        live = axis.extent - full
        lanes = max(self.plan.width, 1 << (live - 1).bit_length())
        self.blocks.open(head, axis)
        self.blocks.add(f"constexpr Lanes<{self.plan.width}, {lanes}, {live}> lanes{{}};")
        self.blocks.add(f"constexpr int64_t {axis.name} = {full};")

    # ---- rows ----------------------------------------------------------------------------

    def _row(self) -> None:
        for each in self.plan.passes:
            self._pass(each)
        if self.plan.after:
            self._stores(self.plan.after, guards([e for s in self.plan.after for e in (s.index, s.value)]))

    def _pass(self, each: Pass) -> None:
        cut = blocking(self.plan) if any(needs_blocks(reduction) for reduction in each.reduces) else None
        sums = [
            Accumulator(
                reduction,
                self.blocks.fresh("acc"),
                self.blocks.fresh("total") if cut and needs_blocks(reduction) else "",
            )
            for reduction in each.reduces
        ]
        for accumulator in sums:
            for line in accumulator.start():
                self.blocks.add(line)
        self._loops(each, sums, cut, 0)
        for accumulator in sums:
            name, in_row = self.blocks.fresh("v"), self.plan.lanes_in_row
            self.blocks.add(f"const auto {name} = {accumulator.result(in_row)};")
            self.blocks.know(accumulator.reduction, Value(name, self.blocks.level, not in_row))

    def _loops(self, each: Pass, sums: list[Accumulator], cut: Blocking | None, depth: int) -> None:
        """The loops over `plan.inner[depth:]` and the body inside them."""
        if depth == len(self.plan.inner):
            self._body(each, sums, part=False)
            return
        axis = self.plan.inner[depth]
        step = self.plan.lanes if axis == self.plan.lane_axis else 1
        full = axis.extent // step * step
        first, last = "0", str(full)
        chunked = cut is not None and cut.loop == depth
        if cut is not None and chunked:
            chunk = f"{axis.name}_block"
            size = cut.trips * step
            first, last = chunk, f"least({chunk} + {size}, {full})"
            self.blocks.open(f"for (int64_t {chunk} = 0; {chunk} < {full}; {chunk} += {size})")
        if full and step > 1:
            self._lane_loop(axis, first, last)
        elif full:
            self.blocks.open(f"for (int64_t {axis.name} = {first}; {axis.name} < {last}; ++{axis.name})", axis)
        if full:
            self._loops(each, sums, cut, depth + 1)
            self.blocks.close()
        if chunked:
            for line in (line for accumulator in sums for line in accumulator.flush()):
                self.blocks.add(line)
            self.blocks.close()
        if full < axis.extent:
            self._lane_rest(axis, full, "")
            self._body(each, sums, part=True)
            self.blocks.close()

    def _body(self, each: Pass, sums: list[Accumulator], part: bool) -> None:
        position = self._place(self.kernel.inner)
        slot = self._place(self.plan.inner)
        if not self.plan.lanes_in_row:
            slot = f"({slot}) * {self.plan.lanes}"
        for node in each.takes:
            name = self.blocks.fresh("v")
            self.blocks.add(f"const auto {name} = load(lanes, {self.kept[node]}.row + {slot});")
            self.blocks.know(node, Value(name, self.blocks.level, True))
        checks = guards(each.roots, each.takes)
        for node, guard in checks.items():
            self.expressions.check(node, guard)
        for accumulator in sums:
            value = self.expressions.vector(accumulator.reduction.body).text
            self.blocks.add(accumulator.take(value, position, self.plan.lanes_in_row, part))
        for node in each.keeps:
            self.blocks.add(f"store(lanes, {self.kept[node]}.row + {slot}, {self.expressions.value(node).text});")
        self._stores(each.stores, {})

    def _place(self, axes: tuple[Axis, ...]) -> str:
        """The position in the row, counted row-major over `axes`."""
        parts = []
        for number, axis in enumerate(axes):
            stride = product(axes[number + 1 :])
            parts.append(axis.name if stride == 1 else f"{axis.name} * {stride}")
        return " + ".join(parts) or "0"

    def _stores(self, stores: tuple[Store, ...], checks: dict[Expr, Expr | None]) -> None:
        """All values first, then all stores: an output may share memory with an input at the same position."""
        for node, guard in checks.items():
            self.expressions.check(node, guard)
        axis = self.plan.lane_axis
        has_lanes = axis is not None and any(axis in block.axes for block in self.blocks.open_blocks)
        for line in [self.expressions.store(store, has_lanes) for store in stores]:
            self.blocks.add(line)
