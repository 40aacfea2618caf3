"""Takes the tokens of effects out of an AOTAutograd graph.

Comes in: a graph in which AOTAutograd has threaded a token through every operator with an effect (a check of errors
that gives no tensor, a print): `with_effects(token, operator, ...)` gives the next token and the operator's results.
Goes out: the graph with plain calls of these operators. Their order is that of the graph, which later stages keep for
whatever `is_impure`; so each such operator is made known to FX as one with a side effect.

AOTAutograd passes None for the tokens and drops those that come back: their placeholders stay, as inputs without a
tensor.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import has_side_effect


def drop_tokens(graph: fx.Graph) -> None:
    """Replace the calls `with_effects(token, operator, *args)` in `graph` by `operator(*args)`, in place."""
    with_effects = getattr(torch.ops.higher_order, "with_effects", None)
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is with_effects:
            _make_plain(graph, node)


def _make_plain(graph: fx.Graph, node: fx.Node) -> None:
    arguments: tuple[Any, ...] = node.args
    token, target, *args = arguments
    has_side_effect(target)
    results: Any = node.meta["val"][1:]
    single = not isinstance(target, OpOverload) or len(target._schema.returns) <= 1
    with graph.inserting_before(node):
        plain = graph.call_function(target, tuple(args), dict(node.kwargs))
    plain.meta = {**node.meta, "val": results[0] if single else tuple(results)}
    for user in list(node.users):
        assert user.target is operator.getitem, f"{user} takes a token and results as one"
        position: Any = user.args[1]
        if position == 0:
            user.replace_all_uses_with(token)
            graph.erase_node(user)
        elif single:
            user.replace_all_uses_with(plain)
            graph.erase_node(user)
        else:
            user.args = (plain, position - 1)
    graph.erase_node(node)
    if isinstance(token, fx.Node) and token.op == "placeholder":
        token.meta["val"] = None
