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
class Operand:
    """A tensor of four dimensions, found under the copies, factors and swaps that lead from it to a batched product.

    node     the tensor, and whether its last two dimensions are swapped on the way
    narrow   the half-precision tensor that `node` is a float32 copy of, and whether it is swapped; None if it is none
    factor   what it is multiplied by on the way
    """

    node: fx.Node
    turned: bool
    narrow: tuple[fx.Node, bool] | None
    factor: float


@dataclass
class Parts:
    """What one attention is made of: q, k^T and v, the factor on the scores, the mask's node."""

    query: Operand
    key_transposed: Operand
    value: Operand
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
    query, key, value = (_operand(node) for node in found if node is not None)
    shapes = {tuple(node.meta["val"].shape[:2]) for node in found if node is not None}
    if shapes != {tuple(scores.shape[:2])} or value.factor != 1.0:
        return None
    return Parts(query, key, value, query.factor * key.factor * factor, mask)


def _operand(node: fx.Node) -> Operand:
    """What `node` is made of. A cast to float32 is looked through, too: the library computes in float32 anyway."""
    factor, turned = 1.0, False
    wide: tuple[fx.Node, bool] | None = None
    while node.op == "call_function" and (below := tensor_of(node.args[0])) is not None:
        value = node.meta["val"]
        if node.target in SCALES and isinstance(node.args[1], (int, float)):
            factor *= float(node.args[1]) ** SCALES[node.target]
        elif _swaps(node):
            turned = not turned
        elif node.target is aten._to_copy.default and wide is None:
            if below.dtype not in HALF or value.dtype is not torch.float32:
                break
            wide = (node, turned)
        elif node.target is not aten.clone.default or below.shape != value.shape:
            break
        node = node.args[0]  # type: ignore[assignment]
    if wide is None:
        return Operand(node, turned, None, factor)
    return Operand(*wide, (node, turned), factor)


def _swaps(node: fx.Node) -> bool:
    """Whether `node` swaps the last two of four dimensions."""
    if node.target is aten.transpose.int:
        return {dimension % 4 for dimension in node.args[1:]} == {2, 3}  # type: ignore[operator]
    return node.target is aten.permute.default and [d % 4 for d in node.args[1]] == [0, 1, 3, 2]  # type: ignore[union-attr,operator]


def _replace(graph: Graph, product: fx.Node, parts: Parts) -> bool:
    body = graph.module.graph
    result, like = product.meta["val"], product
    with body.inserting_before(product):
        query, key, value = operands = _tensors(body, parts, like, graph.device.type == "cuda")
        (dtype,) = {node.meta["val"].dtype for node in operands}
        mask, causal = _mask(graph, parts.mask, product)
        if mask is not None and mask.meta["val"].dtype is not dtype:
            mask = call(body, aten._to_copy.default, (mask,), {"dtype": dtype}, like=like)
        args, scale = (query, key, value, mask, 0.0, causal), {"scale": parts.scale}
        whole = call(body, aten.scaled_dot_product_attention.default, args, scale, like=like)
        if dtype is not result.dtype:
            wide = call(body, aten._to_copy.default, (whole,), {"dtype": result.dtype}, like=like)
        else:
            wide = whole
        _hand_on(product, whole, wide)
        if product.users:
            flat = call(body, aten.reshape.default, (wide, list(result.shape)), like=like)
            product.replace_all_uses_with(flat)
    body.erase_node(product)
    return True


def _tensors(body: fx.Graph, parts: Parts, like: fx.Node, halves: bool) -> list[fx.Node]:
    """q, k and v as the library takes them.

    halves   in half precision if all three are copies of such. Not on a CPU: what is wide there may be so because the
             processor has no instructions for less (`stages.precision`)
    """
    operands = (parts.query, parts.key_transposed, parts.value)
    types = {operand.narrow[0].meta["val"].dtype for operand in operands if operand.narrow is not None}
    narrow = halves and len(types) == 1 and all(operand.narrow is not None for operand in operands)
    made = []
    for operand in operands:
        node, turned = (operand.node, operand.turned)
        if narrow and operand.narrow is not None:
            node, turned = operand.narrow
        if turned != (operand is parts.key_transposed):
            node = call(body, aten.permute.default, (node, [0, 1, 3, 2]), like=like)
        made.append(node)
    return made


def _hand_on(product: fx.Node, whole: fx.Node, wide: fx.Node) -> None:
    """Let the readers that shape the product back to four dimensions, and cast it back, read the attention itself."""
    body = product.graph
    for view in list(product.users):
        value = tensor_of(view)
        if view.target not in RESHAPES or value is None or value.shape != whole.meta["val"].shape:
            continue
        for cast in list(view.users):
            if cast.target is aten._to_copy.default and cast.meta["val"].dtype is whole.meta["val"].dtype:
                if set(cast.kwargs) == {"dtype"}:
                    cast.replace_all_uses_with(whole)
                    body.erase_node(cast)
        view.replace_all_uses_with(wide)
        body.erase_node(view)


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
