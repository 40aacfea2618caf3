"""Matrix products that read one input become one product: query, key and value; gate and up.

    x @ A + a,  x @ B + b   ->   y = x @ [A | B] + [a | b],   y[:, :m], y[:, m:]

The weights are put side by side in the graph, and constant folding does it once, also after a weight changed. The parts
are views, which attention and fused kernels read as they lie. Each value is the sum that it was, of the same products.

On CUDA only: oneDNN's packed products (`prepack.py`) are as fast apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.rewrite.edit import aten, call, calls, drop_dead, frozen_values, tensor_of

ALIGNMENT = 16  # bytes
PRODUCTS = (aten.mm.default, aten.addmm.default)


def merge_siblings(graph: Graph) -> str:
    """Merge products of one left operand with frozen right ones, and with frozen biases or none."""
    if graph.training or graph.device.type != "cuda":
        return ""
    known = frozen_values(graph)
    families: dict[Hashable, list[fx.Node]] = {}
    for node in calls(graph, *PRODUCTS):
        bias, rows, weight = operands(node)
        if rows not in known and weight in known and _plain(node, bias, known):
            families.setdefault((rows, weight.meta["val"].dtype), []).append(node)
    merged = [_merge(graph, family) for family in families.values() if len(family) > 1]
    drop_dead(graph)
    return f"{sum(merged)} products merged into {len(merged)}, one for each input" if merged else ""


def operands(product: fx.Node) -> tuple[Any, Any, Any]:
    """Bias or None, left and right operand of `mm` or `addmm`."""
    bias, left, right = (None, *product.args) if product.target is aten.mm.default else product.args
    return bias, left, right


def _plain(node: fx.Node, bias: Any, known: set[fx.Node]) -> bool:
    """Whether the product is unscaled, its bias (if any) a frozen vector of its type, and its rows are aligned: library
    kernels that read a part begin at a multiple of 16 bytes, as they do with a tensor of its own."""
    value = tensor_of(node)
    if value is None or value.numel() == 0 or node.kwargs or value.shape[1] * value.dtype.itemsize % ALIGNMENT:
        return False
    vector = tensor_of(bias)
    return vector is None or (bias in known and vector.shape == value.shape[1:] and vector.dtype is value.dtype)


def _merge(graph: Graph, family: list[fx.Node]) -> int:
    """Replace the products by parts of one; their number."""
    body = graph.module.graph
    first = family[0]
    parts = [operands(node) for node in family]
    rows = parts[0][1]
    weights = [weight for _, _, weight in parts]
    # Inserted where the first product is; weights that are computed later in the graph come up with it.
    _bring_before(first, [operand for bias, _, weight in parts for operand in (bias, weight) if operand is not None])
    with body.inserting_before(first):
        # Side by side as [out, in], each weight's usual memory, so that the product reads it as it did before.
        turned = [call(body, aten.permute.default, (weight, [1, 0]), like=first) for weight in weights]
        joined = call(body, aten.cat.default, (turned,), like=first)
        weight = call(body, aten.permute.default, (joined, [1, 0]), like=first)
        bias = _joined_bias(body, family, first)
        target = aten.mm.default if bias is None else aten.addmm.default
        whole = call(body, target, (rows, weight) if bias is None else (bias, rows, weight), like=first)
        widths = [node.meta["val"].shape[1] for node in family]
        ends = list(itertools.accumulate(widths))
        for node, end, width in zip(family, ends, widths, strict=True):
            part = call(body, aten.slice.Tensor, (whole, 1, end - width, end), like=node)
            node.replace_all_uses_with(part)
    for node in family:
        body.erase_node(node)
    return len(family)


def _joined_bias(body: fx.Graph, family: list[fx.Node], like: fx.Node) -> fx.Node | None:
    """The biases side by side, zeros for a product without one; None where no product has one."""
    biases = [operands(node)[0] for node in family]
    if all(bias is None for bias in biases):
        return None
    for place, node in enumerate(family):
        if biases[place] is None:
            value: torch.Tensor = node.meta["val"]
            options = {"dtype": value.dtype, "device": value.device}
            biases[place] = call(body, aten.full.default, ([value.shape[1]], 0.0), options, like=node)
    return call(body, aten.cat.default, (biases,), like=like)


def _bring_before(place: fx.Node, nodes: list[fx.Node]) -> None:
    """Move `nodes`, and what they are computed from, before `place` where they come after it."""
    waiting, late = list(nodes), set()
    while waiting:
        node = waiting.pop()
        if node > place and node not in late:
            late.add(node)
            waiting.extend(node.all_input_nodes)
    for node in sorted(late):
        place.prepend(node)
