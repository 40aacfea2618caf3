"""A graph as units of work. Comes in: functional ATen in FX. Goes out: `Units`, what the grouping works on.

A unit is one operation that makes storage. Views are no units: a reader of a view reads the storage below it. An
operation with several results is one unit; each result (a `getitem`) is a storage of its own, a *value*. Graph inputs
are values without a unit.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import fx

from stages.fusion.lowering import Kind, kind_of, why_not
from stages.fusion.lowering.storage import is_view
from stages.fusion.memory import Memory, freeze, is_tensor
from stages.ir.errors import UserError
from stages.ir.graph import Origin, origin_of, values_of


@dataclass(frozen=True)
class Unit:
    """One operation.

    kind      what it is to fusion
    results   the nodes that stand for the storages it makes
    values    those of them that somebody uses
    reads     the storages it reads: values of other units and inputs of the graph
    after     units that must run before it: the makers of `reads`, and the previous one with a side effect
    reason    why it is no kernel of ours; empty if it can be one
    """

    index: int
    node: fx.Node
    kind: Kind
    results: tuple[fx.Node, ...]
    values: tuple[fx.Node, ...]
    reads: tuple[fx.Node, ...]
    after: tuple[int, ...]
    reason: str = ""

    @property
    def is_kernel(self) -> bool:
        return self.kind is not Kind.EXTERN

    @property
    def origin(self) -> Origin:
        return origin_of(self.node)

    @property
    def label(self) -> str:
        return self.node.name


@dataclass
class Units:
    """All units, in the graph's order.

    maker      the unit that makes a value
    users      the units that read a value
    returned   values that an output of the graph is, or is a view of
    """

    memory: Memory
    units: list[Unit] = field(default_factory=list)
    maker: dict[fx.Node, int] = field(default_factory=dict)
    users: dict[fx.Node, list[int]] = field(default_factory=dict)
    returned: set[fx.Node] = field(default_factory=set)

    def __getitem__(self, index: int) -> Unit:
        return self.units[index]

    def __len__(self) -> int:
        return len(self.units)


def units_of(graph: fx.Graph, device: torch.device, memory: Memory) -> Units:
    """The units of `graph` whose results somebody uses, and those with side effects.

    Raises `UserError` on an operation whose result is a number that only a run can tell.
    """
    return _Census(graph, device, memory).take()


class _Census:
    """Goes over a graph once, in its order."""

    def __init__(self, graph: fx.Graph, device: torch.device, memory: Memory) -> None:
        self.graph, self.device = graph, device
        self.memory = memory
        self.known: dict[Hashable, Kind] = {}
        self.kinds = {node: self._kind(node) for node in graph.nodes if node.op == "call_function"}
        self.needed = self._needed()
        self.found = Units(memory)
        self.last_effect: int | None = None

    def take(self) -> Units:
        for node in self.graph.nodes:
            if node.op == "output":
                self.found.returned = {self.memory.owner(read) for read in node.all_input_nodes if is_tensor(read)}
            elif node.op == "call_function" and node in self.needed and self._makes_storage(node):
                self._enter(self._unit(node))
        return self.found

    def _kind(self, node: fx.Node) -> Kind:
        """`kind_of`, asked once for calls that differ in nothing but their place."""
        _refuse_numbers(node)
        layout = self.memory.layout
        key = (node.target, freeze((node.args, node.kwargs), layout), layout(node), self._is_view(node))
        if key not in self.known:
            self.known[key] = kind_of(node)
        return self.known[key]

    def _is_view(self, node: fx.Node) -> bool:
        return is_view(node) if not is_tensor(node) else self.memory.owner(node) is not node

    def _needed(self) -> set[fx.Node]:
        """The nodes on which an output or a side effect depends. `zeros_like` and its kin read only a shape."""
        needed: set[fx.Node] = set()
        for node in reversed(self.graph.nodes):
            effect = node.op == "call_function" and node.is_impure()
            readers = (user for user in node.users if self.kinds.get(user) is not Kind.CREATION)
            if node.op == "output" or effect or any(user in needed for user in readers):
                needed.add(node)
        return needed

    def _unit(self, node: fx.Node) -> Unit:
        kind = self.kinds[node]
        reason = why_not(node) if kind is Kind.EXTERN else ""
        tensors = [read for read in node.all_input_nodes if read.op != "get_attr" and is_tensor(read)]
        if kind is Kind.CREATION:
            tensors = []
        reads = tuple(dict.fromkeys(self.memory.owner(read) for read in tensors))
        after = {self.found.maker[value] for value in reads if value in self.found.maker}
        if has_effect(node) and self.last_effect is not None:
            after.add(self.last_effect)
        devices = {value.device for value in values_of(node) if isinstance(value, torch.Tensor)}
        if kind is not Kind.EXTERN and devices != {self.device}:
            kind, reason = Kind.EXTERN, f"its result lies on {', '.join(map(str, devices - {self.device}))}"
        results = self._results(node)
        values = tuple(value for value in results if value in self.needed)
        return Unit(len(self.found), node, kind, results, values, reads, tuple(sorted(after)), reason)

    def _results(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """The nodes that stand for the tensors that `node` makes: itself, or the `getitem`s of it."""
        picked = [node] if is_tensor(node) else [user for user in node.users if user.target is operator.getitem]
        return tuple(result for result in picked if is_tensor(result) and self.memory.owner(result) is result)

    def _makes_storage(self, node: fx.Node) -> bool:
        """False of views, of the picking of one result, and of an operation all of whose results are views."""
        return node.target is not operator.getitem and not self._is_view(node)

    def _enter(self, unit: Unit) -> None:
        if has_effect(unit.node):
            self.last_effect = unit.index
        self.found.units.append(unit)
        for value in unit.values:
            self.found.maker[value] = unit.index
        for value in unit.reads:
            self.found.users.setdefault(value, []).append(unit.index)


def has_effect(node: fx.Node) -> bool:
    """Whether `node` has to keep its place among others of its like: random numbers, checks, collectives."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or node.is_impure()


def _refuse_numbers(node: fx.Node) -> None:
    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if any(isinstance(value, numbers) for value in values_of(node)):
        raise UserError(
            f"{origin_of(node)}: the result of {node.target} is a number that only a run can tell",
            "torchweld compiles for fixed shapes: keep it a tensor, or let it break the graph.",
        )
