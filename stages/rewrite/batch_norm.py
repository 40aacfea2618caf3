"""Batch norm of a convolution at inference is the convolution with other weights.

    y = (conv(x, w) + b - mean) * gamma / sqrt(var + eps) + beta
      = conv(x, w * scale) + (b - mean) * scale + beta,          scale = gamma / sqrt(var + eps) for each output channel

The arithmetic on weights is put into the graph in float32 (float64 stays); constant folding computes it once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.rewrite.edit import aten, call, calls, drop_dead, tensor_of

NORMS = (aten._native_batch_norm_legit_no_training.default, aten.native_batch_norm.default)


def fold_batch_norm(graph: Graph) -> str:
    """Fold each batch norm whose input is a convolution used by nothing else and whose parameters are weights."""
    if graph.training:
        return ""
    weights = {entry.name for entry in graph.inputs if entry.kind != "user"}
    folded = [node for node in calls(graph, *NORMS) if _fold(graph, node, weights)]
    drop_dead(graph)
    return f"{len(folded)} batch norms folded into convolutions" if folded else ""


def _parts(node: fx.Node) -> tuple[Any, Any, Any, Any, Any, float] | None:
    """input, gamma, beta, mean, variance, epsilon; None where running statistics are not used."""
    if node.target is NORMS[0]:
        x, gamma, beta, mean, variance, _, epsilon = node.args
    else:
        x, gamma, beta, mean, variance, training, _, epsilon = node.args
        if training:
            return None
    return x, gamma, beta, mean, variance, float(epsilon)  # type: ignore[arg-type]


def _through_casts(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """What `node` is a cast of, and the casts, if nothing else reads what lies between."""
    casts: list[fx.Node] = []
    while node.target is aten._to_copy.default and len(node.users) == 1 and isinstance(node.args[0], fx.Node):
        casts.append(node)
        node = node.args[0]
    return node, casts


def _constant(node: Any, weights: set[str]) -> bool:
    """Whether `node` is a weight, or a cast of one."""
    while isinstance(node, fx.Node) and node.target is aten._to_copy.default:
        node = node.args[0]
    return node is None or (isinstance(node, fx.Node) and node.name in weights)


def _fold(graph: Graph, norm: fx.Node, weights: set[str]) -> bool:
    parts = _parts(norm)
    used = {user.args[1] for user in norm.users}
    if parts is None or used != {0}:
        return False
    x, gamma, beta, mean, variance, epsilon = parts
    convolution, _ = _through_casts(x)
    if convolution.target is not aten.convolution.default or len(convolution.users) != 1:
        return False
    source, weight, bias, *rest = convolution.args
    transposed, groups = rest[3], rest[5]
    if transposed and groups != 1:
        return False
    if not all(_constant(part, weights) for part in (weight, bias, gamma, beta, mean, variance)):
        return False
    old = tensor_of(weight)
    result = tensor_of(next(iter(norm.users)))
    assert old is not None and result is not None
    body = graph.module.graph
    with body.inserting_before(convolution):
        new_weight, new_bias = _folded(
            body, norm, (weight, bias, gamma, beta, mean, variance), epsilon, bool(transposed)
        )
        new = call(body, aten.convolution.default, (source, new_weight, new_bias, *rest), like=norm)
        if new.meta["val"].dtype is not result.dtype:
            new = call(body, aten._to_copy.default, (new,), {"dtype": result.dtype}, like=norm)
    for user in list(norm.users):
        user.replace_all_uses_with(new)
        body.erase_node(user)
    body.erase_node(norm)
    return True


def _folded(
    body: fx.Graph, norm: fx.Node, parts: tuple[Any, ...], epsilon: float, transposed: bool
) -> tuple[fx.Node, fx.Node]:
    """The new weight and bias, in the dtype of the old weight."""
    weight, bias, gamma, beta, mean, variance = parts
    stored = weight.meta["val"].dtype
    wide = torch.float64 if stored is torch.float64 else torch.float32

    def do(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return call(body, target, args, kwargs, like=norm)

    def widened(node: fx.Node) -> fx.Node:
        while node.target is aten._to_copy.default:  # the weight before it was rounded
            node = node.args[0]  # type: ignore[assignment]
        return node if node.meta["val"].dtype is wide else do(aten._to_copy.default, node, dtype=wide)

    scale = do(aten.rsqrt.default, do(aten.add.Tensor, widened(variance), epsilon))
    if gamma is not None:
        scale = do(aten.mul.Tensor, scale, widened(gamma))
    shift = do(aten.neg.default, widened(mean))
    if bias is not None:
        shift = do(aten.add.Tensor, shift, widened(bias))
    shift = do(aten.mul.Tensor, shift, scale)
    if beta is not None:
        shift = do(aten.add.Tensor, shift, widened(beta))
    rank = weight.meta["val"].dim()
    shape = [1, -1, *([1] * (rank - 2))] if transposed else [-1, *([1] * (rank - 1))]
    scaled = do(aten.mul.Tensor, widened(weight), do(aten.view.default, scale, shape))
    if stored is not wide:
        scaled = do(aten._to_copy.default, scaled, dtype=stored)
        shift = do(aten._to_copy.default, shift, dtype=stored)
    return scaled, shift
