"""Views by `as_strided` that a program cannot make: they name places of a storage, of which a program sees a part.

Comes in: a graph of Dynamo before tracing, or a node of AOTAutograd's graph after it. Goes out: whether eager has to
run it. In eager, strides and offset count elements of the whole storage. A program is given the address of an input's
first element, and knows of no more than the input reaches; and after a write functionalisation counts in the storage
of the new value, which is none of the input's (nor laid out as it, where that has holes or another order).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from stages.capture.overlap import written_by
from stages.ir.memory import span, storage_of


def loses_its_place(module: fx.GraphModule) -> fx.Node | None:
    """The first `as_strided` of `module`, a graph of Dynamo, of memory that the graph writes to; None if there is none.

    Of a tensor that is contiguous from the first element of its storage on, the new value is as well: that one stays.
    """
    views = [node for node in module.graph.nodes if _is_as_strided(node)]
    if not views:
        return None
    written = {storage_of(tensor) for node in module.graph.nodes if (tensor := written_by(node)) is not None}
    return next((node for node in views if _storage(node) in written and not _is_whole(module, _storage(node))), None)


def _is_as_strided(node: fx.Node) -> bool:
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return node.op in ("call_method", "call_function") and str(name).partition(".")[0] == "as_strided"


def _is_whole(module: fx.GraphModule, storage: Any) -> bool:
    """Whether the tensor that the graph is given, or makes, in that storage is contiguous from its beginning on."""
    inside = [node for node in module.graph.nodes if _storage(node) == storage]
    given = [node for node in inside if node.op in ("placeholder", "get_attr")]
    first = _value(inside[0])
    return len(given) <= 1 and first is not None and bool(first.is_contiguous() and first.storage_offset() == 0)


def reaches_outside(node: fx.Node) -> bool:
    """Whether `node`, of an AOTAutograd graph, is an `as_strided` of memory that its input does not reach."""
    if node.target is not torch.ops.aten.as_strided.default:
        return False
    given, storage = node.all_input_nodes[0], _storage(node)
    while given.op == "call_function" and given.all_input_nodes and _storage(given.all_input_nodes[0]) == storage:
        given = given.all_input_nodes[0]
    source, view = _value(given), _value(node)
    if given.op != "placeholder" or source is None or view is None or 0 in (source.numel(), view.numel()):
        return False
    inside, reached = span(source), span(view)
    return reached[0] < inside[0] or reached[1] > inside[1]


def _value(node: fx.Node) -> Tensor | None:
    """The FakeTensor of a node of either graph; None where it has none, or one without a storage."""
    value = node.meta.get("val", node.meta.get("example_value"))
    return value if isinstance(value, Tensor) and value.layout is torch.strided else None


def _storage(node: fx.Node) -> Any:
    """The identity of a node's memory; the node itself where that is unknown."""
    found = storage_of(_value(node))
    return node if found is None else found
