"""Outputs lie in memory as eager's do, where functionalisation has lost how.

Comes in: an AOTAutograd graph, and the values that Dynamo's graph returns as it was traced, writes and all. Goes out:
the same graph; an output whose strides are others than Dynamo's is copied into those.

A write becomes a call that gives a new tensor, and some operators give theirs other strides than the tensor has that
the write would have gone to: `masked_fill` is always contiguous, `masked_fill_` leaves the strides alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from stages.ir.index import contiguous_strides
from stages.ir.views import is_static

aten = torch.ops.aten


# Functions whose FakeTensor has other strides than eager's result where an argument is not contiguous; tracing knows
# better (`decompositions.py`).
_UNTRUE = """
batch_norm channel_shuffle copysign floor_divide floordiv group_norm log_sigmoid one_hot special_xlog1py special_xlogy
xlog1py xlogy
"""
UNTRUE = frozenset(_UNTRUE.split())


def returned_by(module: fx.GraphModule) -> list[Any]:
    """What Dynamo's graph returns, as FakeTensors with the strides that eager gives; None where it does not say."""
    output = next(iter(reversed(module.graph.nodes)))
    values = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    doubtful: set[fx.Node] = set()
    for node in module.graph.nodes:
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        untrue = name in UNTRUE and not all(map(_contiguous, node.all_input_nodes))
        if untrue or _ambiguous(node) or not doubtful.isdisjoint(node.all_input_nodes):
            doubtful.add(node)
    known = [value if isinstance(value, fx.Node) and value not in doubtful else None for value in values]
    return [None if node is None else node.meta.get("example_value") for node in known]


def _ambiguous(node: fx.Node) -> bool:
    """Whether a value is an image or a volume for which torch tells by the stride of a dimension of one element whether
    it is channels last: Dynamo traces without `true_strides`. What the caller passes is known."""
    value = node.meta.get("example_value")
    if node.op == "placeholder" or not is_static(value):
        return False
    assert value is not None
    return value.dim() in (4, 5) and 1 in value.shape and value.stride() != contiguous_strides(value.shape)


def _contiguous(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.is_contiguous()


def keep_strides(module: fx.GraphModule, first: int, wanted: Sequence[Any]) -> None:
    """Copy outputs `first`, `first + 1`, ... of `module`, in place, where their strides are not those of `wanted`.

    wanted   a tensor for each of these outputs, or None where anything will do
    """
    output = next(iter(reversed(module.graph.nodes)))
    values = list(output.args[0])
    copies: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}
    for position, like in enumerate(wanted, first):
        node = values[position]
        if isinstance(node, fx.Node) and _differs(node.meta.get("val"), like):
            strides = tuple(like.stride())
            if (node, strides) not in copies:
                copies[node, strides] = _copy(module.graph, output, node, strides)
            values[position] = copies[node, strides]
    if copies:
        output.args = (tuple(values),)
        module.recompile()


def _differs(value: Any, like: Any) -> bool:
    """Whether two tensors of one shape have strides that can be told apart, and those of `like` can be written to."""
    for tensor in (value, like):
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return False
        if not all(isinstance(number, int) for number in (*tensor.shape, *tensor.stride())):
            return False
    if value.shape != like.shape or value.dtype != like.dtype or 0 in value.shape:
        return False
    steps = [(a, b) for size, a, b in zip(value.shape, value.stride(), like.stride(), strict=True) if size > 1]
    return any(a != b for a, b in steps) and all(b > 0 for _, b in steps)


def _copy(graph: fx.Graph, output: fx.Node, node: fx.Node, strides: tuple[int, ...]) -> fx.Node:
    value = node.meta["val"]
    shape = tuple(value.shape)
    with graph.inserting_before(output), value.fake_mode:
        empty = graph.call_function(aten.new_empty_strided.default, (node, shape, strides))
        empty.meta = {**node.meta, "val": value.new_empty_strided(shape, strides)}
        copied = graph.call_function(aten.copy.default, (empty, node))
        copied.meta = {**node.meta, "val": value.new_empty_strided(shape, strides)}
    return copied
