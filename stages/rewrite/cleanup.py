"""Operations that do nothing, or do again what was done: removed."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph, values_of
from stages.ir.words import counted
from stages.rewrite.edit import aten, calls, drop_dead, is_pure, output_of, replace, tensor_of

SAME_VALUE = (
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten._to_copy.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.expand.default,
    aten.permute.default,
    aten.slice.Tensor,
    aten.squeeze.dims,
)


def remove_identities(graph: Graph) -> str:
    """Drop copies, casts and views whose result has the dtype, shape and strides of their operand.

    One that the caller gets back stays: it must not become the caller's own input, or another output. Nor may the
    memory of one that a returned view lies in.
    """
    returned = set(output_of(graph).all_input_nodes)
    memory = _returned_memory(graph)
    found = [
        node
        for node in calls(graph, *SAME_VALUE)
        if node not in returned and not _copies_into(node, memory) and drop_identity(node)
    ]
    return f"{counted(len(found), 'operation')} without effect removed" if found else ""


def _copies_into(node: fx.Node, memory: set[int | None]) -> bool:
    """Whether `node` makes memory of its own, and a view of it is returned."""
    old, new = tensor_of(node.args[0]), tensor_of(node)
    return old is not None and new is not None and _storage(old) != _storage(new) and _storage(new) in memory


def drop_identity(node: fx.Node) -> bool:
    """Let the operand of a copy, cast or view stand for it where it has no effect; whether it had none."""
    source = node.args[0] if node.target in SAME_VALUE else None
    old, new = tensor_of(source), tensor_of(node)
    if old is None or new is None:
        return False
    same = old.dtype is new.dtype and old.device == new.device and old.shape == new.shape
    if not same or old.stride() != new.stride() or old.storage_offset() != new.storage_offset():
        return False
    assert isinstance(source, fx.Node)
    replace(node, source)
    return True


def remove_duplicates(graph: Graph) -> str:
    """Join pure calls of one target on the same operands; two results that are both returned, as they are or as the
    memory of a view, stay two."""
    returned = set(output_of(graph).all_input_nodes)
    memory = _returned_memory(graph)
    seen: dict[Any, fx.Node] = {}
    count = 0
    for node in list(graph.module.graph.nodes):
        if node.op != "call_function" or not is_pure(node):
            continue
        key = (node.target, _frozen(node.args), _frozen(node.kwargs))
        first = seen.setdefault(key, node)
        if first is not node and not (node in returned and first in returned):
            here, there = _storages(node), _storages(first)
            if here != there and here & memory:
                if there & memory:
                    continue
                memory |= there
            if node in returned:
                returned.add(first)
            replace(node, first)
            count += 1
    return f"{count} repeated operations joined" if count else ""


def _storage(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None


def _storages(node: fx.Node) -> set[int | None]:
    """The memory of all tensors that `node` gives."""
    return {_storage(value) for value in values_of(node) if isinstance(value, torch.Tensor)} - {None}


def _returned_memory(graph: Graph) -> set[int | None]:
    """The memory that the caller gets a tensor of."""
    return set().union(*map(_storages, output_of(graph).all_input_nodes))


def _frozen(value: Any) -> Any:
    """A hashable form of arguments in which 1, 1.0 and True, and 0.0 and -0.0, differ."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, torch.Tensor):
        return id(value)
    return (type(value).__name__, repr(value))


def remove_dead(graph: Graph) -> str:
    """Drop pure calls whose result nobody uses."""
    before = len(graph.module.graph.nodes)
    drop_dead(graph)
    count = before - len(graph.module.graph.nodes)
    return f"{count} unused operations removed" if count else ""
