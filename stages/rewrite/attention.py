"""Attention recognised from its parts: softmax(q k^T * scale + mask) v becomes one step of a library.

Torch takes attention apart when a mask is a tensor, and models that write it out never had it whole. The parts:

    bmm(view(softmax([scores * c] [+ mask])), view(v)),   scores = view(bmm(view(q [* a]), view(k^T [* b])))

with casts between them. Each part must be used by the next alone. A constant mask that lets everything pass is dropped,
a causal one becomes a flag (see `masks.py`); any other is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.rewrite.edit import aten, call, calls, drop_dead, tensor_of
from stages.rewrite.masks import constant_behind, holds, is_causal, lets_all_pass

SOFTMAX = (aten._softmax.default, aten._safe_softmax.default)
RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.clone.default, aten.expand.default)
SCALES: dict[Any, int] = {aten.mul.Tensor: 1, aten.mul.Scalar: 1, aten.div.Tensor: -1, aten.div.Scalar: -1}
HALF = (torch.bfloat16, torch.float16)


@dataclass
class Parts:
    """What one attention is made of: q, k^T and v of four dimensions, the factor on the scores, the mask's node."""

    query: fx.Node
    key_transposed: fx.Node
    value: fx.Node
    scale: float
    mask: fx.Node | None


def fuse_attention(graph: Graph) -> str:
    """Replace each attention found in parts by one call of `scaled_dot_product_attention`."""
    if graph.training:
        return ""
    count = 0
    for product in calls(graph, aten.bmm.default):
        parts = _match(product)
        if parts is not None and _replace(graph, product, parts):
            count += 1
    drop_dead(graph)
    return f"{count} attentions put together from their parts" if count else ""


def _alone(node: Any) -> bool:
    return isinstance(node, fx.Node) and len(node.users) == 1


def _through(node: Any, targets: tuple[Any, ...]) -> fx.Node:
    """What `node` is made of by calls of `targets`, each used once."""
    while node.op == "call_function" and node.target in targets and _alone(node):
        node = node.args[0]
    return node


def _scaled(node: fx.Node) -> tuple[fx.Node, float]:
    """`node` without a multiplication or division by a number, and the number."""
    power = SCALES.get(node.target) if node.op == "call_function" else None
    if power is None or not _alone(node) or not isinstance(node.args[1], (int, float)):
        return node, 1.0
    return node.args[0], float(node.args[1]) ** power  # type: ignore[return-value]


def _four(node: Any, rows: int, columns: int) -> fx.Node | None:
    """The tensor [batch, heads, rows, columns] of which the operand of a batched product is a reshape."""
    while isinstance(node, fx.Node):
        value = tensor_of(node)
        if value is not None and value.dim() == 4 and tuple(value.shape[-2:]) == (rows, columns):
            return node
        if node.target not in RESHAPES or not _alone(node):
            return None
        node = node.args[0]
    return None


def _match(product: fx.Node) -> Parts | None:
    weights, values = product.args
    softmax = _through(weights, (*RESHAPES, aten._to_copy.default))
    if softmax.target not in SOFTMAX or not _alone(softmax):
        return None
    scores = tensor_of(softmax)
    if scores is None or scores.dim() != 4 or softmax.args[1] not in (-1, 3):
        return None
    queries, keys = scores.shape[-2:]
    inside = _through(softmax.args[0], (aten._to_copy.default,))
    mask: Any = None
    if inside.target is aten.add.Tensor and _alone(inside) and not inside.kwargs:
        inside, mask = inside.args  # type: ignore[assignment]
        if not isinstance(inside, fx.Node) or not isinstance(mask, fx.Node):
            return None
    inside, factor = _scaled(_through(inside, (aten._to_copy.default,)))
    first = _through(inside, (*RESHAPES, aten._to_copy.default))
    if first.target is not aten.bmm.default or not _alone(first):
        return None
    depth, width = tensor_of(first.args[0]).shape[-1], tensor_of(values).shape[-1]  # type: ignore[union-attr]
    found = _four(first.args[0], queries, depth), _four(first.args[1], depth, keys), _four(values, keys, width)
    if None in found or width != depth:
        return None
    query, a = _scaled(found[0])  # type: ignore[arg-type]
    key, b = _scaled(found[1])  # type: ignore[arg-type]
    assert found[2] is not None
    shapes = [tuple(node.meta["val"].shape[:2]) for node in (query, key, found[2])]
    if len(set(shapes)) != 1 or shapes[0] != tuple(scores.shape[:2]):
        return None
    return Parts(query, key, found[2], a * b * factor, mask)


def _narrow(node: fx.Node) -> fx.Node:
    """The half-precision tensor that `node` is a float32 copy of, views between them kept; `node` itself if none."""
    if node.target is aten._to_copy.default and isinstance(node.args[0], fx.Node):
        source = tensor_of(node.args[0])
        if source is not None and source.dtype in HALF and node.meta["val"].dtype is torch.float32:
            return node.args[0]
    return node


def _replace(graph: Graph, product: fx.Node, parts: Parts) -> bool:
    body = graph.module.graph
    result = product.meta["val"]
    batch, heads, queries, depth = parts.query.meta["val"].shape
    with body.inserting_before(product):
        key = _transposed(body, parts.key_transposed, product)
        operands = [_narrow(parts.query), key, _narrow(parts.value)]
        types = {node.meta["val"].dtype for node in operands}
        if len(types) != 1:
            operands, types = [parts.query, _wide_key(body, parts, product), parts.value], {result.dtype}
        (dtype,) = types
        mask, causal = _mask(graph, parts.mask, product)
        if mask is not None and mask.meta["val"].dtype is not dtype:
            mask = call(body, aten._to_copy.default, (mask,), {"dtype": dtype}, like=product)
        args = (*operands, mask, 0.0, causal)
        scale = {"scale": parts.scale}
        whole = call(body, aten.scaled_dot_product_attention.default, args, scale, like=product)
        if whole.meta["val"].dtype is not result.dtype:
            whole = call(body, aten._to_copy.default, (whole,), {"dtype": result.dtype}, like=product)
        flat = call(body, aten.reshape.default, (whole, [batch * heads, queries, depth]), like=product)
    product.replace_all_uses_with(flat)
    body.erase_node(product)
    return True


def _transposed(body: fx.Graph, key: fx.Node, like: fx.Node) -> fx.Node:
    """k of k^T, in the half type if k^T is a cast of it."""
    if key.target in (aten.permute.default, aten.transpose.int) and isinstance(key.args[0], fx.Node):
        narrow = _narrow(key.args[0])
        if narrow is not key.args[0]:
            key = call(body, key.target, (narrow, *key.args[1:]), like=like)
    return call(body, aten.permute.default, (_narrow(key), [0, 1, 3, 2]), like=like)


def _wide_key(body: fx.Graph, parts: Parts, like: fx.Node) -> fx.Node:
    return call(body, aten.permute.default, (parts.key_transposed, [0, 1, 3, 2]), like=like)


def _mask(graph: Graph, mask: fx.Node | None, product: fx.Node) -> tuple[fx.Node | None, bool]:
    """The mask to pass on, and whether attention is causal."""
    found = None if mask is None else constant_behind(graph, mask)
    if found is None:
        return mask, False
    name, view = found
    values = view(graph.input(name).tensor)
    for check in (lets_all_pass, is_causal):
        if check(values):
            graph.assumed[f"the mask of {product.name} {check.__name__.replace('_', ' ')}"] = partial(
                holds, name, view, check
            )
            return None, check is is_causal
    return mask, False
