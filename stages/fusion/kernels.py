"""Kernels of sets of units, each structure lowered once: twelve equal layers cost one lowering.

Comes in: units and the values to store. Goes out: a `Built` kernel with the value behind each of its buffers, or the
`Refusal` that lowering gave. Two sets have one structure if their operations, their constants, the shapes, strides and
types of all values, and the way the values flow are the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from stages.fusion.cost import work
from stages.fusion.lowering import NotFusable, build_kernel
from stages.fusion.units import Unit, owner_of, results_of
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


class Kernels:
    """Builds kernels of units, and keeps what it built by structure."""

    def __init__(self, emulate_precision_casts: bool) -> None:
        self.emulate_precision_casts = emulate_precision_casts
        self.known: dict[Hashable, tuple[Built, tuple[Hashable, ...]] | Refusal] = {}
        self.described: dict[fx.Node, Hashable] = {}

    def build(self, units: Iterable[Unit], outputs: Sequence[fx.Node]) -> Built | Refusal:
        """One kernel that runs `units` and stores `outputs`."""
        nodes = nodes_of(units)
        key, places = self._structure(nodes, outputs)
        if (known := self.known.get(key)) is None:
            known = self.known[key] = self._lower(nodes, outputs, places)
        if isinstance(known, Refusal):
            return known
        built, roles = known
        by_role = {role: value for value, role in places.items()}
        return replace(built, values=tuple(by_role[role] for role in roles))

    def _lower(
        self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], places: dict[fx.Node, Hashable]
    ) -> tuple[Built, tuple[Hashable, ...]] | Refusal:
        try:
            kernel, values = build_kernel(nodes, outputs, "kernel", self.emulate_precision_casts)
        except NotFusable as refusal:
            return Refusal(refusal.reason)
        built = Built(kernel, tuple(values), sum(traffic(kernel)), work(kernel))
        return built, tuple(places[value] for value in values)

    def _structure(
        self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]
    ) -> tuple[Hashable, dict[fx.Node, Hashable]]:
        """A key equal for equal structures, and the role of each node and each input in it."""
        places: dict[fx.Node, Hashable] = {}
        inputs = 0

        def place(node: fx.Node) -> Hashable:
            nonlocal inputs
            if node in places:
                return places[node], ()
            base = owner_of(node)
            if base not in places:
                places[base] = ("input", inputs)
                inputs += 1
            return places[base], self._describe(base), self._describe(node)

        lines: list[Hashable] = []
        for number, node in enumerate(nodes):
            args = (_freeze(node.args, place), _freeze(node.kwargs, place))
            places[node] = ("node", number)
            lines.append((node.target, args, self._describe(node)))
        return (tuple(lines), tuple(places[value] for value in outputs)), places

    def _describe(self, node: fx.Node) -> Hashable:
        """Shape, strides, offset and type of the value or values of `node`."""
        if node not in self.described:
            self.described[node] = _geometry(node.meta["val"])
        return self.described[node]


def nodes_of(units: Iterable[Unit]) -> list[fx.Node]:
    """The operations of `units` and their results, in the graph's order. The views between them follow from these."""
    chosen = list(units)
    return sorted({unit.node for unit in chosen} | {value for unit in chosen for value in results_of(unit.node)})


def _geometry(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        size = value.untyped_storage().nbytes()
        return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, size
    if isinstance(value, (tuple, list)):
        return tuple(_geometry(item) for item in value)
    return value


def _freeze(argument: Any, place: Any) -> Hashable:
    """An argument of a node as a key: nodes by their place, numbers with their type (1, 1.0 and True differ)."""
    if isinstance(argument, fx.Node):
        return place(argument)
    if isinstance(argument, (tuple, list)):
        return tuple(_freeze(item, place) for item in argument)
    if isinstance(argument, dict):
        return tuple((name, _freeze(item, place)) for name, item in argument.items())
    if isinstance(argument, slice):
        return ("slice", *(_freeze(item, place) for item in (argument.start, argument.stop, argument.step)))
    return (type(argument).__name__, repr(argument) if isinstance(argument, float) else argument)
