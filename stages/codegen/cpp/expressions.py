"""Expressions of the loop IR as C++ statements: each node once, in the outermost block where its operands are known.

A node that depends on the lane axis is a vector, any other a scalar, which `splat` spreads where a vector meets it.
Loads go by how the index moves along the lanes: not at all, by one element, by a fixed step, or freely.
"""

from __future__ import annotations

from dataclasses import dataclass

from stages.codegen.cpp.blocks import Blocks, Value
from stages.codegen.cpp.operators import ATOMIC_SUMS, C_TYPES, FUNCTIONS, conversion, literal
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Cast, Const, Expr, Load, Op, Select, Var
from stages.ir.index import bounds, coefficient, terms_of
from stages.ir.kernel import IRError, Store


@dataclass(frozen=True)
class Address:
    """`base` is a scalar element offset and `step` what a lane adds to it; or each lane has its own offset, `free`."""

    base: str
    step: int
    level: int
    free: str = ""

    @property
    def varies(self) -> bool:
        return bool(self.step or self.free)


class Expressions:
    """Prints expressions into `blocks`; `lane_axis` is the axis that vectors lie along."""

    def __init__(self, blocks: Blocks, lane_axis: Axis | None) -> None:
        self.blocks = blocks
        self.lane_axis = lane_axis

    # ---- values --------------------------------------------------------------------------

    def value(self, node: Expr) -> Value:
        """The value of `node`, printing the statements that are missing for it."""
        if isinstance(node, Const):
            return Value(literal(node.value, node.dtype), 0, False)
        if (known := self.blocks.find(node)) is not None:
            return known
        if isinstance(node, Var):
            return self._position(node)
        if isinstance(node, Op) and (plain := self._plain_index(node)) is not None:
            return plain
        made = self._describe(node)
        name = self.blocks.fresh("v")
        self.blocks.add(f"const auto {name} = {made.text};", made.level)
        return self.blocks.know(node, Value(name, made.level, made.vector))

    def vector(self, node: Expr) -> Value:
        """The value of `node` with a lane each, whether or not it varies along them."""
        return self._spread(self.value(node))

    def _spread(self, value: Value) -> Value:
        return value if value.vector else Value(f"splat(lanes, {value.text})", value.level, True)

    def _position(self, node: Var) -> Value:
        level = self.blocks.level_of(node.axis)
        if node.axis != self.lane_axis:
            return Value(node.axis.name, level, False)
        name = self.blocks.fresh("v")
        self.blocks.add(f"const auto {name} = positions(lanes, {node.axis.name});", level)
        return self.blocks.know(node, Value(name, level, True))

    def _plain_index(self, node: Op) -> Value | None:
        """A quotient or remainder of numbers that are not negative: C's own, which the compiler makes fast."""
        if node.name not in ("floordiv", "mod") or not isinstance(node.args[1], Const):
            return None
        span = bounds(node.args[0])
        if span is None or span[0] < 0 or coefficient(node.args[0], self.lane_axis or Axis("", 1)) != 0:
            return None
        inside = self.value(node.args[0])
        sign = "/" if node.name == "floordiv" else "%"
        return None if inside.vector else Value(f"({inside.text} {sign} {node.args[1].value})", inside.level, False)

    def _describe(self, node: Expr) -> Value:
        if isinstance(node, Op):
            return self._operation(node)
        if isinstance(node, Cast):
            inside = self.value(node.value)
            tag = "lanes" if inside.vector else "scalar"
            return Value(conversion(inside.text, node.value.dtype, node.dtype, tag), inside.level, inside.vector)
        if isinstance(node, Select):
            return self._selection(node)
        if isinstance(node, Load):
            return self._load(node)
        raise IRError(f"a {type(node).__name__} is used before its pass over the row")

    def _selection(self, node: Select) -> Value:
        condition, yes, no = (self.value(child) for child in node.children)
        function = "select"
        if any(part.vector for part in (condition, yes, no)):
            yes, no = self._spread(yes), self._spread(no)
            if node.dtype is DType.BOOL:
                condition, function = self._spread(condition), "mask_select"
        level = max(condition.level, yes.level, no.level)
        text = f"{function}({condition.text}, {yes.text}, {no.text})"
        return Value(text, level, condition.vector or yes.vector)

    def _operation(self, node: Op) -> Value:
        args = [self.value(arg) for arg in node.args]
        if any(arg.vector for arg in args):
            args = [self._spread(arg) for arg in args]
        # Masks have many types, so that operators on them have functions of their own.
        of_masks = node.name in ("eq", "ne", "lt", "le", "gt", "ge") and node.args[0].dtype is DType.BOOL
        function = f"mask_{node.name}" if of_masks else FUNCTIONS[node.name]
        text = f"{function}({', '.join(arg.text for arg in args)})"
        return Value(text, max(arg.level for arg in args), args[0].vector)

    # ---- memory --------------------------------------------------------------------------

    def address(self, index: Expr) -> Address:
        """Where `index` points, lane by lane."""
        step = coefficient(index, self.lane_axis) if self.lane_axis else 0
        total, terms = terms_of(index)
        if step is None:
            return self._free(index)
        parts, level = [], 0
        for atom, factor in terms.items():
            if isinstance(atom, Var):
                text, at, vector = atom.axis.name, self.blocks.level_of(atom.axis), False
            else:
                inside = self.value(atom)
                text, at, vector = inside.text, inside.level, inside.vector
            if vector:
                return self._free(index)
            parts.append(text if factor == 1 else f"{text} * {factor}")
            level = max(level, at)
        if total or not parts:
            parts.append(str(total))
        return Address(" + ".join(parts), step, level)

    def _free(self, index: Expr) -> Address:
        """By the value of `index`; it is the same for all lanes where what depends on them is a sum over the row."""
        made = self.value(index)
        return Address("0", 0, made.level, made.text) if made.vector else Address(made.text, 0, made.level)

    def _load(self, node: Load) -> Value:
        at = self.address(node.index)
        mask = None if node.mask is None else self.value(node.mask)
        level = max(at.level, mask.level if mask else 0)
        from_ = f"{node.buffer.name} + {at.base}"
        vector = at.varies or (mask is not None and mask.vector)
        if not vector:
            text = f"{node.buffer.name}[{at.base}]"
            if mask is not None:
                text = f"{mask.text} ? {text} : {self._other(node)}"
                text = f"({text})" if node.dtype is DType.BOOL else text
            return Value(f"{text} != 0" if node.dtype is DType.BOOL else text, level, False)
        if at.free:
            name, where = "gather", f"{node.buffer.name}, {at.free}"
        elif at.step == 1:
            name, where = "load", from_
        else:
            name, where = "load_step", f"{from_}, {at.step}"
        if mask is None:
            text = f"{name}(lanes, {where})"
        else:
            condition = mask.text if mask.vector or name == "load" else f"splat(lanes, {mask.text})"
            text = f"{name}_if(lanes, {where}, {condition}, {self._other(node)})"
        return Value(f"to_bool({text})" if node.dtype is DType.BOOL else text, level, True)

    def _other(self, node: Load) -> str:
        assert node.other is not None
        return literal(node.other.value, DType.UINT8 if node.dtype is DType.BOOL else node.dtype)

    def store(self, store: Store, vector: bool) -> str:
        """The statement that stores, its operands printed before it; `vector`: from a block that has lanes."""
        buffer, dtype = store.buffer.name, store.buffer.dtype
        at = self.address(store.index)
        vector = vector or at.varies
        made = self.vector(store.value) if vector else self.value(store.value)
        lanes, text = ("lanes" if vector else "scalar"), made.text
        if dtype is DType.BOOL:
            text = f"from_bool<{C_TYPES[dtype]}>({lanes}, {text})"
        if store.mode == "add":
            index = (self.vector if vector else self.value)(store.index).text
            return f"add_at({lanes}, {buffer}, {index}, {text}, {ATOMIC_SUMS[dtype]});"
        if not vector:
            return f"{buffer}[{at.base}] = {text};"
        if at.free:
            return f"scatter(lanes, {buffer}, {at.free}, {text});"
        if at.step == 1:
            return f"store(lanes, {buffer} + {at.base}, {text});"
        return f"store_step(lanes, {buffer} + {at.base}, {at.step}, {text});"

    # ---- index checks --------------------------------------------------------------------

    def check(self, node: Expr, guard: Expr | None) -> None:
        """Note a failure where the operand of the `bounded` that `node` is lies out of range, and `guard` holds."""
        index, size = (self.value(arg) for arg in node.children)
        when = None if guard is None else self.value(guard)
        level = max(index.level, when.level if when else 0)
        if not self.blocks.first_check(node, guard, level):
            return
        vector = index.vector or (when is not None and when.vector)
        index, size = (self._spread(part) if vector else part for part in (index, size))
        text = f"outside({index.text}, {size.text})"
        if when is not None:
            text = f"logical_and({text}, {(self._spread(when) if vector else when).text})"
        text = f"any_lane(live(lanes, {text}, 0))" if vector else text
        self.blocks.add(f"failed |= {text};", level)
