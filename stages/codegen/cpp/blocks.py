"""Nested blocks of C++ under construction: a statement can still be added to any block that is open.

That is how loop-invariant values are hoisted: while the innermost loop is being printed, what does not depend on it
goes to the end of the block around it, which comes before the loop in the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stages.ir.expr import Axis, Expr


@dataclass(frozen=True)
class Value:
    """A C++ expression without side effect; `level` is the block it needs, `vector` whether it has a value per lane."""

    text: str
    level: int
    vector: bool


@dataclass
class Block:
    """`head { lines }`; the axes whose variable it declares, and the values of nodes that are named in it."""

    head: str
    axes: tuple[Axis, ...] = ()
    lines: list[str] = field(default_factory=list)
    values: dict[Expr, Value] = field(default_factory=dict)
    checked: set[tuple[Expr, Expr | None]] = field(default_factory=set)


class Blocks:
    """The open blocks, outermost first."""

    def __init__(self, head: str) -> None:
        self.open_blocks = [Block(head)]
        self._names: dict[str, int] = {}

    @property
    def level(self) -> int:
        """Number of the innermost block."""
        return len(self.open_blocks) - 1

    def fresh(self, prefix: str) -> str:
        """A name that no other value has."""
        number = self._names.get(prefix, 0)
        self._names[prefix] = number + 1
        return f"{prefix}{number}"

    def add(self, line: str, level: int | None = None) -> None:
        """`line` at the end of block number `level`, or of the innermost."""
        self.open_blocks[self.level if level is None else level].lines.append(line)

    def open(self, head: str, *axes: Axis) -> None:
        self.open_blocks.append(Block(head, axes))

    def close(self) -> None:
        block = self.open_blocks.pop()
        outer = self.open_blocks[-1].lines
        outer.append(f"{block.head} {{".lstrip())
        outer.extend(f"  {line}" for line in block.lines)
        outer.append("}")

    def finish(self) -> str:
        """The text of the outermost block, which must be the only one left open."""
        (block,) = self.open_blocks
        return "\n".join([f"{block.head} {{", *(f"  {line}" for line in block.lines), "}"]) + "\n"

    def find(self, node: Expr) -> Value | None:
        """The value of `node`, where an open block has one."""
        return next((b.values[node] for b in reversed(self.open_blocks) if node in b.values), None)

    def know(self, node: Expr, value: Value) -> Value:
        """`value` as that of `node` while its block is open."""
        self.open_blocks[value.level].values[node] = value
        return value

    def level_of(self, axis: Axis) -> int:
        """The block that declares the variable of `axis`."""
        return next(n for n, block in reversed(list(enumerate(self.open_blocks))) if axis in block.axes)

    def first_check(self, index: Expr, guard: Expr | None, level: int) -> bool:
        """Whether no open block checks `index` under `guard` yet; block `level` does from now on."""
        if any((index, guard) in block.checked for block in self.open_blocks):
            return False
        self.open_blocks[level].checked.add((index, guard))
        return True
