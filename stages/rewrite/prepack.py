"""Linear layers and convolutions with frozen weights on the CPU: oneDNN steps with the weight packed once.

oneDNN blocks a weight for its kernels at each call unless it gets it blocked already; packed, the 30522-wide decoder of
BERT takes half the time (docs/measurements/cpu_first_runs.md). The steps carry attr "none"; fusion may give them an
epilogue.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.ir.words import counted
from stages.rewrite.edit import aten, call, calls, replace, tensor_of

mkldnn = torch.ops.mkldnn


def prepack(graph: Graph) -> str:
    """Replace addmm, mm and convolution in float32 by oneDNN steps where the weight is frozen."""
    if graph.training or graph.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return ""
    known = _frozen_values(graph)
    linears = [node for node in calls(graph, aten.addmm.default, aten.mm.default) if _linear(graph, node, known)]
    convolutions = [node for node in calls(graph, aten.convolution.default) if _convolution(graph, node, known)]
    made = {"linear layer": len(linears), "convolution": len(convolutions)}
    counts = [counted(count, what) for what, count in made.items() if count]
    return " and ".join(counts) + " packed for oneDNN" if counts else ""


def _frozen_values(graph: Graph) -> set[fx.Node]:
    """Weights, and what is computed from weights alone."""
    given = {entry.name for entry in graph.inputs if entry.kind != "user"}
    known: set[fx.Node] = set()
    for node in graph.module.graph.nodes:
        operands = node.all_input_nodes
        if node.name in given or (node.op == "call_function" and operands and all(o in known for o in operands)):
            known.add(node)
    return known


def _plain_float(*nodes: Any) -> bool:
    return all((tensor := tensor_of(node)) is not None and tensor.dtype is torch.float32 for node in nodes)


def _linear(graph: Graph, node: fx.Node, known: set[fx.Node]) -> bool:
    """addmm(bias, x, w) or mm(x, w), w of shape [in, out] frozen: x @ packed(w.T).T + bias."""
    bias, x, weight = node.args[-3:] if node.target is aten.addmm.default else (None, *node.args)
    if node.kwargs or not isinstance(weight, fx.Node) or weight not in known or not _plain_float(x, weight):
        return False
    values = (tensor_of(x), tensor_of(weight))
    assert values[0] is not None and values[1] is not None
    if bias is not None and (not _plain_float(bias) or bias.meta["val"].shape != (values[1].shape[1],)):  # type: ignore[union-attr]
        return False
    if 0 in (*values[0].shape, *values[1].shape):
        return False
    body = graph.module.graph
    with body.inserting_before(node):
        rows = call(body, aten.permute.default, (weight, [1, 0]), like=node)
        if not rows.meta["val"].is_contiguous():
            rows = call(body, aten.clone.default, (rows,), {"memory_format": torch.contiguous_format}, like=node)
        value = rows.meta["val"]
        args = (rows, values[0].shape[0])
        packed = call(body, mkldnn._reorder_linear_weight.default, args, like=node, value=_own(graph, value))
        new = call(body, mkldnn._linear_pointwise.default, (x, packed, bias, "none", [], ""), like=node)
    known.update((rows, packed))
    replace(node, new)
    return True


def _convolution(graph: Graph, node: fx.Node, known: set[fx.Node]) -> bool:
    """A convolution over one to three dimensions of space, not transposed."""
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
    body = graph.module.graph
    window = (padding, stride, dilation, groups)
    with body.inserting_before(node):
        args = (weight, *window, list(value.shape))
        packed = call(body, mkldnn._reorder_convolution_weight.default, args, like=node, value=_own(graph, kernel))
        new = call(body, mkldnn._convolution_pointwise.default, (x, packed, bias, *window, "none", [], ""), like=node)
    known.add(packed)
    replace(node, new)
    return True


def _own(graph: Graph, value: torch.Tensor) -> torch.Tensor:
    """A fake tensor like `value` with storage of its own: what stands for an opaque packed weight."""
    from stages.rewrite.edit import fake_mode_of

    with fake_mode_of(graph.module):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
