"""Accumulators: how each reduction of a pass starts, takes a value, and ends.

A float sum over many values is accumulated in blocks: each block in the type itself, the blocks in double. So the error
does not grow with the length of the row, whatever the order of the loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stages.codegen.cpp.operators import C_TYPES, COMBINES, identity, literal
from stages.codegen.cpp.plan import Plan
from stages.ir.dtype import DType
from stages.ir.expr import Reduce
from stages.ir.kernel import product

# A lane that adds up more values than `LONGEST` does so in blocks of about `BLOCK`.
LONGEST, BLOCK = 128, 16


@dataclass(frozen=True)
class Accumulator:
    """One reduction in progress, in the variable `name`; `total` is that of a sum in blocks, else ''."""

    reduction: Reduce
    name: str
    total: str = ""

    @property
    def _extreme(self) -> bool:
        return self.reduction.combine in ("argmax", "argmin")

    @property
    def _dtype(self) -> DType:
        return self.reduction.body.dtype

    @property
    def _identity(self) -> str:
        return literal(identity(self.reduction.combine, self._dtype), self._dtype)

    @property
    def _lane_identity(self) -> str:
        """The identity as an element of a vector: a mask's lanes are whole numbers."""
        return ("-1" if self._identity == "true" else "0") if self._dtype is DType.BOOL else self._identity

    def start(self) -> list[str]:
        """Declarations, before the loop."""
        first = f"splat(lanes, {self._identity})"
        if self._extreme:
            return [f"auto {self.name} = extreme({first}, splat(lanes, {self._position('0')}));"]
        lines = [f"auto {self.name} = {first};"]
        if self.total:
            lines.append(f"auto {self.total} = splat(lanes, 0.0);")
        return lines

    def _position(self, text: str) -> str:
        return f"{self._position_type}({text})"

    @property
    def _position_type(self) -> str:
        return "int32_t" if self._dtype.itemsize <= 4 and product(self.reduction.axes) < 1 << 31 else "int64_t"

    def take(self, value: str, position: str, in_row: bool, part: bool) -> str:
        """Take in a vector; `position` is its place in the row, that of the first lane where lanes lie `in_row`.

        part: the vector has lanes that are not live, and may be shorter than the accumulator.
        """
        if self._dtype is DType.BOOL:
            value = f"bytes(lanes, {value})"
        at = f"positions<{self._position_type}>(lanes, {position})"
        if not in_row:
            at = f"splat(lanes, {self._position(position)})"
        if part:
            of = f"{self.name}.value" if self._extreme else self.name
            value = f"widen<decltype({of})>(live(lanes, {value}, {self._lane_identity}), {self._lane_identity})"
            at = f"widen<decltype({self.name}.at)>({at}, 0)"
        function, order = COMBINES[self.reduction.combine]
        if self._extreme:
            return f"{self.name} = {function}({order}, {self.name}, {value}, {at});"
        return f"{self.name} = {function}({self.name}, {value});"

    def flush(self) -> list[str]:
        """At the end of a block: add it to the total."""
        if not self.total:
            return []
        return [f"{self.total} = {self._blocks};", f"{self.name} = splat(lanes, {self._identity});"]

    @property
    def _blocks(self) -> str:
        return f"add({self.total}, convert<double>(lanes, {self.name}))"

    def result(self, in_row: bool) -> str:
        """The value, after the loop: one for the row where lanes lie `in_row`, else one a lane."""
        _, fold = COMBINES[self.reduction.combine]
        if self._extreme:
            return f"first_best({fold}, lanes, {self.name})" if in_row else f"convert<int64_t>(lanes, {self.name}.at)"
        value = self._blocks if self.total else self.name
        if in_row and self._dtype is DType.BOOL:
            return f"{'any_lane' if self.reduction.combine == 'any' else 'all_lanes'}({value})"
        if in_row:
            value = f"fold({fold}, {value})"
        if not self.total or self._dtype is DType.FLOAT64:
            return value
        return f"convert<{C_TYPES[self._dtype]}>({'scalar' if in_row else 'lanes'}, {value})"


@dataclass(frozen=True)
class Blocking:
    """Loop number `loop` of `Plan.inner` runs in chunks of `trips`; a sum is flushed after each."""

    loop: int
    trips: int


def blocking(plan: Plan) -> Blocking | None:
    """Where sums are flushed so that no lane adds up more than `LONGEST` values in a row; None for short rows."""
    trips = [-(-axis.extent // plan.lanes) if axis == plan.lane_axis else axis.extent for axis in plan.inner]
    if math.prod(trips) <= LONGEST:
        return None
    inside = 1
    for number in reversed(range(len(trips))):
        if inside * trips[number] > BLOCK:
            return Blocking(number, max(1, BLOCK // inside))
        inside *= trips[number]
    return None


def needs_blocks(reduction: Reduce) -> bool:
    """Whether the error of `reduction` would grow with its length."""
    return reduction.combine == "sum" and reduction.dtype.is_float
