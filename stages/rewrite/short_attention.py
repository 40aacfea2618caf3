"""Attention over short sequences on CUDA: one kernel of our own in place of the library's.

Which sizes are taken is `stages.ir.operators.suits`'s to say. Taken are calls without a mask tensor and without
dropout of which only the attention itself is used (a library's also gives what a backward pass needs).
"""

from __future__ import annotations

import math
import operator
from typing import Any

from torch import fx

from stages.ir import operators
from stages.ir.graph import Graph
from stages.rewrite.edit import aten, call, calls, drop_dead, replace, tensor_of

# operator: positions of (mask, dropout, is_causal); None where it takes no mask
LIBRARY: dict[Any, tuple[int | None, int, int]] = {
    aten.scaled_dot_product_attention.default: (3, 4, 5),
    aten._scaled_dot_product_flash_attention.default: (None, 3, 4),
    aten._scaled_dot_product_efficient_attention.default: (3, 5, 6),
    aten._scaled_dot_product_cudnn_attention.default: (3, 5, 6),
}


def short_attention(graph: Graph) -> str:
    """Replace calls of a library's attention that `stages.ir.operators.suits` takes."""
    if graph.training or graph.device.type != "cuda":
        return ""
    count = sum(_replace(graph, node) for node in calls(graph, *LIBRARY))
    drop_dead(graph)
    return f"{count} attentions over short sequences by a kernel of our own" if count else ""


def _replace(graph: Graph, node: fx.Node) -> bool:
    mask, dropout, causal = LIBRARY[node.target]
    given = (node.args + (None,) * 8)[:8]
    query, key, value = given[:3]
    tensors = [tensor_of(operand) for operand in (query, key, value)]
    results = _results(node)
    unfit = node.kwargs.keys() - {"scale"} or (mask is not None and given[mask] is not None) or given[dropout]
    if unfit or results is None or None in tensors or not operators.suits(*tensors, bool(given[causal])):  # type: ignore[arg-type, call-arg]
        return False
    scale = node.kwargs.get("scale")
    factor = 1 / math.sqrt(tensors[0].shape[-1]) if scale is None else float(scale)  # type: ignore[union-attr, arg-type]
    body = graph.module.graph
    with body.inserting_before(node):
        arguments = (query, key, value, factor, bool(given[causal]))
        new = call(body, operators.OPERATOR, arguments, like=node)
    for result in results:
        if result is not node:
            replace(result, new)
    if results == [node]:
        node.replace_all_uses_with(new)
    body.erase_node(node)
    return True


def _results(node: fx.Node) -> list[fx.Node] | None:
    """The nodes that are the attention itself; None where anything else of the result is used."""
    if tensor_of(node) is not None:
        return [node]
    users = list(node.users)
    return users if all(user.target is operator.getitem and user.args[1] == 0 for user in users) else None
