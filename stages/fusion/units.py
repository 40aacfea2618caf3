"""A graph as units of work. Comes in: functional ATen in FX. Goes out: `Units`, what the grouping works on.

A unit is one operation that makes storage. Views are no units: a reader of a view reads the storage below it. An
operation with several results is one unit; each result (a `getitem`) is a storage of its own, a *value*. Graph inputs
are values without a unit.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
from torch import fx

from stages.fusion.lowering import Kind, kind_of, why_not
from stages.fusion.lowering.storage import base_of, is_view, tensor_of
from stages.ir.errors import UserError
from stages.ir.graph import Origin, origin_of, values_of


@dataclass(frozen=True)
class Unit:
    """One operation.

    kind      what it is to fusion
    values    the storages it makes
    reads     the storages it reads: values of other units and inputs of the graph
    views     the view nodes between those storages and it, in the graph's order
    after     units that must run before it: the makers of `reads`, and the previous one with a side effect
    reason    why it is no kernel of ours; empty if it can be one
    """

    index: int
    node: fx.Node
    kind: Kind
    values: tuple[fx.Node, ...]
    reads: tuple[fx.Node, ...]
    views: tuple[fx.Node, ...]
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

    units: list[Unit] = field(default_factory=list)
    maker: dict[fx.Node, int] = field(default_factory=dict)
    users: dict[fx.Node, list[int]] = field(default_factory=dict)
    returned: set[fx.Node] = field(default_factory=set)

    def __getitem__(self, index: int) -> Unit:
        return self.units[index]

    def __len__(self) -> int:
        return len(self.units)


def units_of(graph: fx.Graph, device: torch.device) -> Units:
    """The units of `graph` whose results somebody uses, and those with side effects.

    Raises `UserError` on an operation whose result is a number that only a run can tell.
    """
    needed = _needed(graph)
    found = Units()
    last_effect: int | None = None
    for node in graph.nodes:
        if node.op == "output":
            found.returned = {owner_of(read) for read in node.all_input_nodes if is_tensor(read)}
        if node.op != "call_function" or node not in needed or not _makes_storage(node):
            continue
        _refuse_numbers(node)
        unit = _unit(node, found, device, needed, last_effect)
        last_effect = unit.index if has_effect(node) else last_effect
        found.units.append(unit)
        for value in unit.values:
            found.maker[value] = unit.index
        for value in unit.reads:
            found.users.setdefault(value, []).append(unit.index)
    return found


def _unit(
    node: fx.Node, found: Units, device: torch.device, needed: set[fx.Node], last_effect: int | None
) -> Unit:
    tensors = [read for read in node.all_input_nodes if read.op != "get_attr" and is_tensor(read)]
    kind = kind_of(node)
    if kind is Kind.CREATION and node.meta["val"].device != device and not _only_kernels_read(node):
        kind = Kind.EXTERN
    if _looks_at_shape(node):
        tensors = []
    reads = tuple(dict.fromkeys(owner_of(read) for read in tensors))
    views = tuple(sorted({view for read in tensors for view in views_below(read)}))
    after = {found.maker[value] for value in reads if value in found.maker}
    if has_effect(node) and last_effect is not None:
        after.add(last_effect)
    reason = _reason(node, reads, found, device) if kind is not Kind.EXTERN else why_not(node)
    kind = Kind.EXTERN if reason else kind
    values = tuple(value for value in results_of(node) if value in needed)
    return Unit(len(found), node, kind, values, reads, views, tuple(sorted(after)), reason)


def _reason(node: fx.Node, reads: tuple[fx.Node, ...], found: Units, device: torch.device) -> str:
    """Why an operation that has a lowering runs in torch all the same; empty if it does not."""
    for value in reads:
        created = value in found.maker and found[found.maker[value]].kind is Kind.CREATION
        if value.meta["val"].device != device and not created:
            return f"it reads {value.name}, which lies on {value.meta['val'].device}"
    return ""


def _only_kernels_read(node: fx.Node) -> bool:
    """Whether all that reads `node` could be kernels, so that it does not matter on which device it is created."""
    return all(user.op == "call_function" and kind_of(user) in (Kind.POINTWISE, Kind.REDUCTION) for user in node.users)


def results_of(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes that stand for the tensors that `node` makes: itself, or the `getitem`s of it."""
    if not isinstance(node.meta.get("val"), (tuple, list)):
        return (node,) if is_tensor(node) and owner_of(node) is node else ()
    picked = (user for user in node.users if user.target is operator.getitem and is_tensor(user))
    return tuple(user for user in picked if owner_of(user) is user)


def owner_of(node: fx.Node) -> fx.Node:
    """The node that owns the memory of the tensor that `node` gives."""
    return base_of(node).node


def views_below(node: fx.Node) -> list[fx.Node]:
    """The nodes that lead from the owner of the memory of `node` to it: views, and operations that give several."""
    owner, chain = owner_of(node), []
    while node is not owner:
        chain.append(node)
        if node.target is operator.getitem:
            node = node.all_input_nodes[0]
            chain.append(node)
        node = next(read for read in node.all_input_nodes if is_tensor(read) and owner_of(read) is owner)
    return chain


def is_tensor(node: fx.Node) -> bool:
    return tensor_of(node) is not None


def has_effect(node: fx.Node) -> bool:
    """Whether the order of runs of `node` against others of its like can be told: random numbers, checks, collectives."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or node.is_impure()


def _makes_storage(node: fx.Node) -> bool:
    """False of views, of the picking of one result, and of an operation all of whose results are views."""
    return node.target is not operator.getitem and not is_view(node)


def _needed(graph: fx.Graph) -> set[fx.Node]:
    """The nodes on which an output or a side effect depends."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        effect = node.op == "call_function" and node.is_impure()
        read = any(user in needed and not _looks_at_shape(user) for user in node.users)
        if node.op == "output" or effect or read:
            needed.add(node)
    return needed


def _looks_at_shape(node: fx.Node) -> bool:
    """Whether `node` is a `zeros_like` or one of its kin, which read no element of their argument."""
    return node.op == "call_function" and kind_of(node) is Kind.CREATION


def _refuse_numbers(node: fx.Node) -> None:
    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if any(isinstance(value, numbers) for value in values_of(node)):
        raise UserError(
            f"{origin_of(node)}: the result of {node.target} is a number that only a run can tell",
            "torchweld compiles for fixed shapes: keep it a tensor, or let it break the graph (capture.fullgraph=false).",
        )
