"""Fake values made true again after a pass that changed layouts, with the strides of what the caller gets kept.

A library step may want or give another memory format than eager's (oneDNN's convolutions give channels last). Inside
the graph any layout will do; at its outputs the caller finds the one that eager gives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.ir.views import view_strides
from stages.rewrite.cleanup import drop_identity
from stages.rewrite.edit import VIEWS, aten, call, computed, fake_mode_of, output_of, tensor_of
from stages.rewrite.memory_order import by_storage, covering


def outputs_of(graph: Graph) -> list[Any]:
    """The fake values of what the graph returns, in order; None for what is no tensor."""
    (returned,) = output_of(graph).args
    return [tensor_of(value) for value in returned]  # type: ignore[union-attr]


def propagate(graph: Graph, wanted: list[Any], tidy: bool = False) -> None:
    """Recompute the fake value of every call; give outputs the strides of `wanted` by a copy where they moved.

    wanted   what `outputs_of` gave before anything was rewritten
    tidy     drop copies for the sake of a layout that their operand now has anyway
    """
    update_all(graph, tidy)
    _restore_outputs(graph, wanted)


def update_all(graph: Graph, tidy: bool = False) -> None:
    """`update` of every call, in order: what a pass does that puts other layouts into the graph, so that passes after
    it read true ones. Constant folding runs what it folds."""
    body = graph.module.graph
    mode = fake_mode_of(graph.module)
    returned = set(output_of(graph).all_input_nodes)
    for node in list(body.nodes):
        if node.op == "call_function":
            with mode, torch.no_grad():
                update(body, node)
            if tidy and node not in returned:
                drop_identity(node)  # those that read it are still to come


def update(body: fx.Graph, node: fx.Node) -> None:
    """Compute the fake value of `node` anew, under the graph's fake mode; a view that memory no longer allows becomes
    one of a copy."""
    if node.target in VIEWS and not _viewable(node):
        with body.inserting_before(node):
            plain = call(body, aten.clone.default, (node.args[0],), _CONTIGUOUS, like=node)
        node.args = (plain, *node.args[1:])
    old = node.meta.get("val")
    if isinstance(old, torch.Tensor) and getattr(old, "is_mkldnn", False):
        return
    if getattr(node.target, "namespace", "") == "mkldnn" and "reorder" in str(node.target):
        return  # an opaque packed weight: described by the plain tensor it was packed from
    assert callable(node.target)
    node.meta["val"] = computed(node.target, node.args, node.kwargs)


_CONTIGUOUS: dict[str, Any] = {"memory_format": torch.contiguous_format}


def _viewable(node: fx.Node) -> bool:
    source = tensor_of(node.args[0])
    assert source is not None
    try:
        view_strides(source, node.args[1])  # type: ignore[arg-type]
    except RuntimeError:
        return False
    return True


def _restore_outputs(graph: Graph, wanted: list[Any]) -> None:
    """Copies of outputs whose strides moved, in their old ones; those that shared memory are views of one copy."""
    output = output_of(graph)
    (returned,) = output.args
    pairs = zip(returned, wanted, strict=True)  # type: ignore[arg-type]
    old_of = {node: old for node, old in pairs if old is not None and tensor_of(node) is not None}
    restored: dict[fx.Node, fx.Node] = {}
    with graph.module.graph.inserting_before(output):
        for nodes in by_storage(old_of).values():
            moved = [node for node in nodes if old_of[node].stride() != node.meta["val"].stride()]
            whole = covering(nodes, old_of) if moved else None
            if whole is None:
                restored |= {node: _copy_as(graph, node, old_of[node]) for node in moved}
                continue
            restored[whole] = copy = _copy_as(graph, whole, old_of[whole])
            parts = [node for node in nodes if node is not whole]
            restored |= {node: _view_as(graph, copy, old_of[node], old_of[whole], like=node) for node in parts}
    for node, copy in restored.items():
        output.replace_input_with(node, copy)


def _copy_as(graph: Graph, node: fx.Node, old: torch.Tensor) -> fx.Node:
    options = {"dtype": old.dtype, "device": old.device}
    empty = call(
        graph.module.graph, aten.empty_strided.default, (list(old.shape), list(old.stride())), options, like=node
    )
    return call(graph.module.graph, aten.copy.default, (empty, node), like=node)


def _view_as(graph: Graph, whole: fx.Node, old: torch.Tensor, old_whole: torch.Tensor, like: fx.Node) -> fx.Node:
    """The view of `whole` that lies in it as `old` lay in `old_whole`."""
    offset = int(old.storage_offset()) - int(old_whole.storage_offset())
    arguments = (whole, list(old.shape), list(old.stride()), offset)
    return call(graph.module.graph, aten.as_strided.default, arguments, like=like)
