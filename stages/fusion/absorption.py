"""What library epilogues have in common: finding the one reader of a result, and letting it stand for what it absorbs.

Comes in: a copy of a graph that is being edited. Goes out: the same, with notes of what each operation now computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx

from stages.fusion.lowering.storage import is_view, tensor_of
from stages.ir.graph import origin_of
from stages.ir.program import Decision

aten = torch.ops.aten


@dataclass
class Absorption:
    """A graph with library epilogues; `absorbed` has the nodes that each operation computes besides its own.

    nan_losing   whether epilogues that give a number for NaN may be used
    """

    nodes: fx.Graph
    nan_losing: bool = False
    absorbed: dict[fx.Node, tuple[fx.Node, ...]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_reader(node: fx.Node) -> tuple[list[fx.Node], fx.Node] | None:
    """The one operation that reads `node`, and `node` with the reshapes that lead there; None if there is not one."""
    chain = [node]
    while len(chain[-1].users) == 1:
        (user,) = chain[-1].users
        if user.op != "call_function" or tensor_of(user) is None:
            return None
        if not (is_view(user) and user.target in (aten.view.default, aten._unsafe_view.default)):
            return chain, user
        chain.append(user)
    return None


def find_addend(value: fx.Node, add: fx.Node) -> fx.Node | None:
    """What `add` adds to `value`, if it is a tensor laid out like it, added once and unscaled."""
    if add.target is not aten.add.Tensor or add.kwargs.get("alpha", 1) != 1:
        return None
    others = [operand for operand in add.args if operand is not value]
    if len(others) != 1 or not isinstance(others[0], fx.Node) or tensor_of(others[0]) is None:
        return None
    return others[0] if alike(value, others[0]) and alike(value, add) else None


def alike(one: fx.Node, two: fx.Node) -> bool:
    """Whether two tensors have one shape, one type and one layout."""
    first, second = known_tensor(one), known_tensor(two)
    same = (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)
    return same and first.stride() == second.stride()


def known_tensor(node: fx.Node) -> torch.Tensor:
    """The fake tensor of a node that gives one."""
    tensor = tensor_of(node)
    assert tensor is not None
    return tensor


def finish(chain: list[fx.Node], gone: fx.Node, rule: str, made: Absorption) -> None:
    """Let the end of `chain`, whose first node now has the post-op, stand for `gone`; drop what nobody reads any more.

    The chain takes over the fake storage of `gone`: it is what tells that the views of `gone` are views.
    """
    node, value, result = chain[0], chain[-1], known_tensor(gone)
    for link in chain:
        link.meta["val"] = result if link is value else result.view(known_tensor(link).shape)
    saved = 2 * result.numel() * result.dtype.itemsize
    reason = "the library computes it before it writes its result"
    made.decisions.append(Decision(node.name, gone.name, True, rule, reason, origin_of(gone), saved))
    made.absorbed[node] = (*made.absorbed.get(node, ()), gone)
    gone.replace_all_uses_with(value)
    waiting = [gone]
    while waiting:
        dead = waiting.pop()
        if not dead.users and dead.op == "call_function":
            waiting.extend(dead.all_input_nodes)
            made.nodes.erase_node(dead)
