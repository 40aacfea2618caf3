"""Run a `Graph` node by node, at its own precision or in float64, and hand out each value by the name of its node.

Comes in: a GraphModule of functional ATen and the tensors of its placeholders. Goes out: an iterator of (name, tensor)
in the graph's order, (name.k, tensor) for the k-th value of a node that gives several. Values are dropped after their
last use, so a graph is walked in about the memory that eager needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map, tree_map_only

from stages.ir.memory import laid_out, overlaps
from stages.validate.reference import raised

# Operators whose third argument asks for float32 out of float16: it has no meaning in float64.
_HALF_TO_FLOAT = {torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default}


def node_values(
    module: fx.GraphModule, inputs: Sequence[torch.Tensor], float64: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that the nodes of `module` compute on `inputs` (in the placeholders' order).

    float64   floating inputs, constants and every type that a node names are float64; an operator that has no float64
              form runs in the types that the graph gives it, and its result is widened
    """
    values: dict[fx.Node, Any] = {}
    given = iter(inputs)
    last_use = {source: node for node in module.graph.nodes for source in node.all_input_nodes}
    dying: dict[fx.Node, list[fx.Node]] = {}
    for source, node in last_use.items():
        dying.setdefault(node, []).append(source)
    for node in module.graph.nodes:
        if node.op == "output":
            return
        if node.op == "placeholder":
            value = next(given)
        elif node.op == "get_attr":
            value = _attribute(module, str(node.target))
        else:
            value = _as_planned(_call(node, values, float64), node.meta.get("val"))
        values[node] = _widen(value) if float64 else value
        if node.op == "call_function":
            yield from _named(node.name, values[node])
        for source in dying.get(node, ()):
            del values[source]


def _call(node: fx.Node, values: dict[fx.Node, Any], float64: bool) -> Any:
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    target: Any = node.target
    if not float64:
        return target(*args, **kwargs)
    wide_args, wide_kwargs = tree_map_only(torch.dtype, raised, (args, kwargs))
    if target in _HALF_TO_FLOAT:
        wide_args = (*wide_args[:2], False)
    try:
        return target(*wide_args, **wide_kwargs)
    except RuntimeError:
        narrow = fx.map_arg((node.args, node.kwargs), lambda source: _as_in_graph(source, values[source]))
        return target(*narrow[0], **narrow[1])


def _as_in_graph(node: fx.Node, value: Any) -> Any:
    """`value` in the type that the graph has for `node`."""
    meta = node.meta.get("val")
    if isinstance(value, torch.Tensor) and isinstance(meta, torch.Tensor):
        return value.to(meta.dtype)
    return value


def _as_planned(value: Any, meta: Any) -> Any:
    """`value` with the strides that the graph has for it: views further on are made for those.

    In float64 an operator may take another way, whose result lies otherwise (attention of a library, a convolution).
    """
    if isinstance(value, (tuple, list)) and isinstance(meta, (tuple, list)) and len(value) == len(meta):
        return type(value)(map(_as_planned, value, meta))
    if not (isinstance(value, torch.Tensor) and isinstance(meta, torch.Tensor)) or value.layout is not torch.strided:
        return value
    strides = meta.stride()
    if value.shape != meta.shape or value.stride() == strides or overlaps(meta.shape, strides):
        return value
    return laid_out(value, strides)


def _widen(value: Any) -> Any:
    """Tensors in the widest type of their kind; one in a layout of a library's own has no other type."""

    def widen(leaf: Any) -> Any:
        strided = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
        return leaf.to(raised(leaf.dtype)) if strided else leaf

    return tree_map(widen, value)


def _attribute(module: fx.GraphModule, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _named(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (tuple, list)):
        for position, item in enumerate(value):
            if isinstance(item, torch.Tensor):
                yield f"{name}.{position}", item
