"""Kernels of sets of units, each structure lowered once: twelve equal layers cost one lowering.

Comes in: units and the values to store. Goes out: a `Built` kernel with the value behind each of its buffers, or the
`Refusal` that lowering gave. Two sets have one structure if their operations, their constants, the shapes, strides and
types of all values, and the way the values flow are the same.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from torch import fx

from stages.fusion.cost import work
from stages.fusion.lowering import NotFusable, build_kernel
from stages.fusion.memory import Memory, freeze, is_tensor
from stages.fusion.units import Unit
from stages.ir.kernel import Kernel, traffic


@dataclass(frozen=True)
class Refusal:
    """Why something is not fused, in plain words."""

    reason: str


@dataclass(frozen=True)
class Built:
    """A kernel of some units.

    values    the value behind each of `kernel.buffers`
    traffic   bytes that it reads and writes at the least
    work      scalar operations a position
    """

    kernel: Kernel
    values: tuple[fx.Node, ...]
    traffic: int
    work: int

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        return self.values[: len(self.kernel.inputs)]

    @property
    def outputs(self) -> tuple[fx.Node, ...]:
        """The stored values, in the graph's order."""
        return self.values[len(self.kernel.inputs) :]

    @property
    def positions(self) -> int:
        return self.kernel.rows * self.kernel.row_size

    @property
    def reduces(self) -> bool:
        return bool(self.kernel.reduces)


Roles = dict[fx.Node, Hashable]


@dataclass(frozen=True)
class _Known:
    """What came of a structure, and the roles of its nodes the first time it was met."""

    result: Built | Refusal
    roles: Roles


class Kernels:
    """Builds kernels of units, and keeps what it built by structure."""

    def __init__(self, memory: Memory, emulate_precision_casts: bool) -> None:
        self.memory = memory
        self.emulate_precision_casts = emulate_precision_casts
        self.known: dict[Hashable, _Known] = {}

    def build(self, units: Iterable[Unit], outputs: Sequence[fx.Node]) -> Built | Refusal:
        """One kernel that runs `units` and stores `outputs`."""
        nodes = nodes_of(units)
        key, roles = self._structure(nodes, outputs)
        if (known := self.known.get(key)) is None:
            known = self.known[key] = _Known(self._lower(nodes, outputs), roles)
        by_role = {role: node for node, role in roles.items()}
        if isinstance(known.result, Built):
            return replace(known.result, values=tuple(by_role[known.roles[node]] for node in known.result.values))
        names = {node.name: by_role[role].name for node, role in known.roles.items()}
        return Refusal(re.sub(r"\w+", lambda word: names.get(word[0], word[0]), known.result.reason))

    def _lower(self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> Built | Refusal:
        try:
            kernel, values = build_kernel(nodes, outputs, "kernel", self.emulate_precision_casts)
        except NotFusable as refusal:
            return Refusal(refusal.reason)
        return Built(kernel, tuple(values), sum(traffic(kernel)), work(kernel))

    def _structure(self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> tuple[Hashable, Roles]:
        """A key equal for equal structures, and the role of each node and of each storage from outside in it."""
        roles: Roles = {}
        layout = self.memory.layout

        def place(node: fx.Node) -> Hashable:
            if node in roles:
                return roles[node]
            if not is_tensor(node):
                return ("outside", layout(node))
            owner = self.memory.owner(node)
            if owner not in roles:
                roles[owner] = ("input", len(roles))
            return roles[owner], layout(owner), layout(node)

        lines: list[Hashable] = []
        for number, node in enumerate(nodes):
            args = freeze((node.args, node.kwargs), place)
            roles[node] = ("node", number)
            lines.append((node.target, args, layout(node)))
        return (tuple(lines), tuple(roles[value] for value in outputs)), roles


def nodes_of(units: Iterable[Unit]) -> list[fx.Node]:
    """The operations of `units` and their results, in the graph's order. The views between them follow from these."""
    return sorted({node for unit in units for node in (unit.node, *unit.results)})
