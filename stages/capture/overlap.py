"""Writes that eager refuses: to memory that overlaps itself, or that an operand overlaps in part.

Comes in: a graph of Dynamo, whose in-place operations are still in it, with FakeTensors that share storage as the real
ones do. Goes out: the first such write. Functionalisation would give it a meaning where eager raises an error
(ATen/MemoryOverlap.cpp, which these rules are), so a graph with one is left to eager.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

_NAMES = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift"
_IN_PLACE = {getattr(operator, name) for name in _NAMES.split()}


def refused_write(module: fx.GraphModule) -> fx.Node | None:
    """The first node of `module` that writes where eager raises an error; None where there is none."""
    return next((node for node in module.graph.nodes if _is_refused(node)), None)


def _is_refused(node: fx.Node) -> bool:
    written, read = _written(node), []
    if written is None or not _is_static(written):
        return False
    for source in node.all_input_nodes:
        value = source.meta.get("example_value")
        if isinstance(value, Tensor) and source is not node.args[0] and _is_static(value):
            read.append(value)
    return overlaps_itself(written) or any(_overlap_in_part(written, other) for other in read)


def _written(node: fx.Node) -> Tensor | None:
    """What an in-place operation writes to."""
    in_place = node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__")
    if not (in_place or node.target in _IN_PLACE or node.target is operator.setitem):
        return None
    target = node.args[0]
    value = target.meta.get("example_value") if isinstance(target, fx.Node) else None
    if not isinstance(value, Tensor):
        return None
    return _part(value, node.args[1]) if node.target is operator.setitem else value


def _part(whole: Any, index: Any) -> Tensor | None:
    """The view that `whole[index]` is; None for an index that copies."""
    if any(
        not isinstance(part, (int, slice, type(None), type(Ellipsis))) or isinstance(part, bool)
        for part in _parts(index)
    ):
        return None
    with whole.fake_mode:
        view: Tensor = whole[index]
    return view


def _parts(index: Any) -> tuple[Any, ...]:
    return tuple(index) if isinstance(index, (tuple, list)) else (index,)


def _is_static(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return all(isinstance(number, int) for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether several elements are one place in memory, by a stride of 0."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride()))


def _overlap_in_part(one: Tensor, other: Tensor) -> bool:
    if not one.numel() or not other.numel() or one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    if not (_is_dense(one) and _is_dense(other)):
        return False
    (start, end), (other_start, other_end) = _bytes(one), _bytes(other)
    if (start, end) == (other_start, other_end):
        return one.stride() != other.stride()
    return start < other_end and other_start < end


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without a gap, in any order of the dimensions."""
    reached = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1):
        if stride != reached:
            return False
        reached *= size
    return True


def _bytes(tensor: Tensor) -> tuple[int, int]:
    start = int(tensor.storage_offset()) * tensor.itemsize
    return start, start + int(tensor.numel()) * tensor.itemsize
