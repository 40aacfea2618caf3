"""Max pooling as the maximum of shifted images, on CUDA, where one kernel computes it from memory.

torch's kernel for channels-last images takes seven times as long as reading and writing them, since it keeps the index
of each maximum, too. Where nobody reads the indices,

    y[i, j] = max over u, v of x[s*i + d*u - p, s*j + d*v - p],      -inf outside the image

is pointwise arithmetic on slices of the padded image, which fusion puts into one kernel. NaN wins in both.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from stages.ir.graph import Graph
from stages.ir.words import counted
from stages.rewrite.edit import aten, call, calls, drop_dead, tensor_of

LARGEST_WINDOW = 9


def pool_to_maxima(graph: Graph) -> str:
    """Replace max pooling over small windows whose indices nobody reads."""
    if graph.training or graph.device.type != "cuda":
        return ""
    done = [node for node in calls(graph, aten.max_pool2d_with_indices.default) if _replace(graph, node)]
    drop_dead(graph)
    return f"{counted(len(done), 'max pooling')} as maxima of shifted images" if done else ""


def _replace(graph: Graph, node: fx.Node) -> bool:
    image = node.args[0]
    value = tensor_of(image)
    users = list(node.users)
    if value is None or value.dim() != 4 or value.numel() == 0 or not value.dtype.is_floating_point:
        return False
    if any(user.target is not operator.getitem or user.args[1] != 0 for user in users):
        return False
    kernel, stride, padding, dilation = (_pair(node, place) for place in range(1, 5))
    stride = stride or kernel
    assert kernel is not None and stride is not None
    if kernel[0] * kernel[1] > LARGEST_WINDOW:
        return False
    body = graph.module.graph
    with body.inserting_before(node):
        new = _maximum(body, node, image, (kernel, stride, padding or (0, 0), dilation or (1, 1)))
    for user in users:
        user.replace_all_uses_with(new)
        body.erase_node(user)
    return True


Pair = tuple[int, int]


def _pair(node: fx.Node, place: int) -> Pair | None:
    """An argument of pooling for both directions; None where it is left out."""
    given: Any = node.args[place] if len(node.args) > place else None
    if not isinstance(given, (list, tuple)):
        return None if given is None else (int(given), int(given))
    return (int(given[0]), int(given[-1])) if given else None


def _maximum(body: fx.Graph, node: fx.Node, image: Any, window: tuple[Pair, Pair, Pair, Pair]) -> fx.Node:
    kernel, stride, padding, dilation = window
    sizes, results = tensor_of(image).shape[2:], node.meta["val"][0].shape[2:]  # type: ignore[union-attr]
    reach = [(results[d] - 1) * stride[d] + 1 for d in range(2)]
    after = [reach[d] + dilation[d] * (kernel[d] - 1) - padding[d] - sizes[d] for d in range(2)]
    zeros = [padding[1], max(after[1], 0), padding[0], max(after[0], 0)]
    if any(zeros):
        image = call(body, aten.constant_pad_nd.default, (image, zeros, float("-inf")), like=node)
    shifted = []
    for down in range(kernel[0]):
        begin = down * dilation[0]
        rows = call(body, aten.slice.Tensor, (image, 2, begin, begin + reach[0], stride[0]), like=node)
        for right in range(kernel[1]):
            begin = right * dilation[1]
            part = call(body, aten.slice.Tensor, (rows, 3, begin, begin + reach[1], stride[1]), like=node)
            shifted.append(part)
    best = shifted[0]
    for part in shifted[1:]:
        best = call(body, aten.maximum.default, (best, part), like=node)
    return best
