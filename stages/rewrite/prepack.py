"""Linear layers and convolutions with frozen weights on the CPU: oneDNN steps with the weight packed once.

oneDNN blocks a weight for its kernels at each call unless it gets it blocked already; packed, the 30522-wide decoder of
BERT takes half the time (docs/measurements/cpu_first_runs.md). The steps carry attr "none"; fusion may give them an
epilogue.

In float32 oneDNN adds up the products of one element in one chain; MKL, which eager calls for linear layers and for
small convolutions, in several. Over 768 of them oneDNN's error is twice MKL's, and what follows may enlarge it
(docs/measurements/suite_cpu_smoke.md). So `prepack` gives oneDNN a long sum in two, if that keeps near MKL's error, and
leaves still longer ones to the call that eager makes, unless that is oneDNN's too; `prepack_long_sums`, which no config
lists, trades the error for time.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.ir.words import counted
from stages.rewrite.edit import aten, call, calls, fake_mode_of, frozen_values, replace, tensor_of
from stages.rewrite.memory_order import CONVOLUTIONS, memory_order_matters
from stages.rewrite.propagate import update_all

mkldnn = torch.ops.mkldnn

# The most products that oneDNN adds up with no larger error than MKL does, measured against float64 on AVX2; over 384
# its error is 1.4 times MKL's. One row is added up otherwise, and with the smaller error of the two.
LONGEST_SUM = 192
# Of a linear layer: sums of up to so many, and so many of them added up. 128×768→3072 takes 5.7 ms in one, 6.9 in two,
# 7.7 in three and 10.0 by MKL; 128×3072→768 takes 6.8 by MKL and in four (docs/measurements/cpu_first_runs.md).
LONGEST_PART, MOST_PARTS = 384, 2


def prepack(graph: Graph) -> str:
    """Replace addmm, mm and convolution in float32 by oneDNN steps where the weight is frozen and the result is as
    accurate."""
    return _prepack(graph, accurate=True)


def prepack_long_sums(graph: Graph) -> str:
    """`prepack` however many products an element of the result is the sum of: up to twice as fast where the result is
    wide, and up to twice as far from float64."""
    return _prepack(graph, accurate=False)


def _prepack(graph: Graph, accurate: bool) -> str:
    if graph.training or graph.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return ""
    known = frozen_values(graph)
    windows = calls(graph, aten.convolution.default) if not memory_order_matters(graph, CONVOLUTIONS) else []
    products = calls(graph, aten.addmm.default, aten.mm.default)
    linears = [node for node in products if _linear(graph, node, known, accurate)]
    convolutions = [node for node in windows if _convolution(graph, node, known, accurate)]
    if convolutions:
        update_all(graph)  # oneDNN gives channels last
    made = {"linear layer": len(linears), "convolution": len(convolutions)}
    counts = [counted(count, what) for what, count in made.items() if count]
    return " and ".join(counts) + " packed for oneDNN" if counts else ""


def _plain_float(*nodes: Any) -> bool:
    return all((tensor := tensor_of(node)) is not None and tensor.dtype is torch.float32 for node in nodes)


def _linear(graph: Graph, node: fx.Node, known: set[fx.Node], accurate: bool) -> bool:
    """addmm(bias, x, w) or mm(x, w), w of shape [in, out] frozen: x @ packed(w.T).T + bias, of two halves of the sum or
    of the whole."""
    bias, x, weight = node.args[-3:] if node.target is aten.addmm.default else (None, *node.args)
    if node.kwargs or not isinstance(weight, fx.Node) or weight not in known or not _plain_float(x, weight):
        return False
    values = (tensor_of(x), tensor_of(weight))
    assert values[0] is not None and values[1] is not None
    if bias is not None and (not _plain_float(bias) or bias.meta["val"].shape != (values[1].shape[1],)):  # type: ignore[union-attr]
        return False
    rows, summed = values[0].shape
    parts = ceil(summed / LONGEST_PART) if accurate and rows > 1 and summed > LONGEST_SUM else 1
    if 0 in (rows, *values[1].shape) or parts > MOST_PARTS:
        return False
    body = graph.module.graph
    with body.inserting_before(node):
        new: fx.Node | None = None
        for part in range(parts):
            of_x, of_weight = x, weight
            if parts > 1:
                bounds = (part * summed // parts, (part + 1) * summed // parts)
                of_x = call(body, aten.slice.Tensor, (x, 1, *bounds), like=node)
                of_weight = call(body, aten.slice.Tensor, (weight, 0, *bounds), like=node)
            packed = _packed(graph, node, of_weight, rows, known)
            args: tuple[Any, ...] = (of_x, packed, bias if new is None else None, "none", [], "")
            made = call(body, mkldnn._linear_pointwise.default, args, like=node)
            new = made if new is None else call(body, aten.add.Tensor, (new, made), like=node)
    assert new is not None
    replace(node, new)
    return True


def _packed(graph: Graph, node: fx.Node, weight: fx.Node, rows: int, known: set[fx.Node]) -> fx.Node:
    """The frozen [in, out] `weight` in oneDNN's layout for so many rows; what it takes joins `known`."""
    body = graph.module.graph
    turned = call(body, aten.permute.default, (weight, [1, 0]), like=node)
    if not turned.meta["val"].is_contiguous():
        turned = call(body, aten.clone.default, (turned,), {"memory_format": torch.contiguous_format}, like=node)
    own = _own(graph, turned.meta["val"])
    packed = call(body, mkldnn._reorder_linear_weight.default, (turned, rows), like=node, value=own)
    known.update((weight, turned, packed))
    return packed


def _convolution(graph: Graph, node: fx.Node, known: set[fx.Node], accurate: bool) -> bool:
    """A convolution over two dimensions of space, not transposed."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    if (
        transposed
        or weight not in known
        or not _plain_float(x, weight)
        or (bias is not None and not _plain_float(bias))
    ):
        return False
    if bias is not None and bias not in known:
        return False
    value, kernel = tensor_of(x), tensor_of(weight)
    assert value is not None and kernel is not None and isinstance(weight, fx.Node)
    if value.dim() != 4 or 0 in value.shape:
        return False
    if accurate and prod(kernel.shape[1:]) > LONGEST_SUM and not _onednn_in_eager(node):
        return False
    body = graph.module.graph
    window = (padding, stride, dilation, groups)
    with body.inserting_before(node):
        args = (weight, *window, list(value.shape))
        packed = call(body, mkldnn._reorder_convolution_weight.default, args, like=node, value=_own(graph, kernel))
        new = call(body, mkldnn._convolution_pointwise.default, (x, packed, bias, *window, "none", [], ""), like=node)
    known.add(packed)
    replace(node, new)
    return True


def _onednn_in_eager(node: fx.Node) -> bool:
    """Whether eager computes a convolution by oneDNN, which depends on its sizes and on the number of threads."""
    x, weight, bias, *window = node.args
    nodes = [node if isinstance(node, fx.Node) else None for node in (x, weight, bias)]
    shapes = [None if node is None else torch.empty(node.meta["val"].shape, device="cpu") for node in nodes]
    backend = torch._C._select_conv_backend(*shapes, *window, None)
    return backend.name in ("Mkldnn", "MkldnnEmpty")


def _own(graph: Graph, value: torch.Tensor) -> torch.Tensor:
    """A fake tensor like `value` with storage of its own: what stands for an opaque packed weight."""
    with fake_mode_of(graph.module):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
