"""Whether a model can tell in which order a result lies in memory.

Comes in: a graph before anything in it was laid out anew. Goes out: why, in words, or nothing. Where it can, results
have to lie as eager's do: `as_strided` reads memory as it finds it, a view of another type wants elements side by side,
and outputs that share memory do so because one is a view of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph, origin_of
from stages.ir.memory import span, storage_of
from stages.rewrite.edit import aten, calls, output_of, tensor_of

LOOKS_AT_MEMORY = (aten.as_strided.default, aten.view.dtype, aten.view_as_complex.default)
CONVOLUTIONS = frozenset({aten.convolution.default})
ATTENTIONS = frozenset(
    {
        aten.bmm.default,
        aten.scaled_dot_product_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }
)
# Operators whose results lie the same way, however their operands do.
_ALWAYS_ALIKE = (aten.mm.default, aten.addmm.default, aten.embedding.default)


def memory_order_matters(graph: Graph, makers: Collection[Any]) -> str:
    """Why results of the operators `makers` have to lie in memory as eager's do; empty where nothing says so."""
    for why, node in _lookers(graph):
        waiting, seen = [node], {node}
        while waiting:
            source = waiting.pop()
            if source.target in makers:
                return f"{why}, at {origin_of(node)}"
            if source.target not in _ALWAYS_ALIKE:
                waiting += [operand for operand in source.all_input_nodes if operand not in seen]
                seen.update(source.all_input_nodes)
    return ""


def _lookers(graph: Graph) -> Iterator[tuple[str, fx.Node]]:
    """The nodes whose order in memory can be told, and how."""
    for node in calls(graph, *LOOKS_AT_MEMORY):
        yield f"{node.target} looks at memory as it lies", node
    given = {storage_of(tensor_of(node)) for node in graph.module.graph.nodes if node.op == "placeholder"}
    returned = {node: value for node in output_of(graph).all_input_nodes if (value := tensor_of(node)) is not None}
    for storage, nodes in by_storage(returned).items():
        if storage not in given and covering(nodes, returned) is None:
            yield from (("outputs share memory that none of them is all of", node) for node in nodes)


def by_storage(values: Mapping[fx.Node, torch.Tensor]) -> dict[Any, list[fx.Node]]:
    """The nodes of `values` by the storage that their fake values lie in."""
    found: dict[Any, list[fx.Node]] = defaultdict(list)
    for node, value in values.items():
        found[node if (storage := storage_of(value)) is None else storage].append(node)
    return found


def covering(nodes: Sequence[fx.Node], values: Mapping[fx.Node, torch.Tensor]) -> fx.Node | None:
    """Of nodes in one storage the one that has all elements of the others, each once; None if there is none."""
    if len(nodes) == 1:
        return nodes[0]
    spans = {node: span(values[node]) for node in nodes}
    begin, end = min(reach[0] for reach in spans.values()), max(reach[1] for reach in spans.values())
    whole = [node for node in nodes if spans[node] == (begin, end) and values[node].numel() == end - begin]
    return whole[0] if whole and len({values[node].dtype for node in nodes}) == 1 else None
