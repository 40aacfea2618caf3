"""Writes to memory that overlaps itself, or that an operand overlaps in part.

Comes in: a graph of Dynamo, whose in-place operations are still in it, with FakeTensors that share storage as the real
ones do. Goes out: the first such write. Most of them eager refuses (ATen/MemoryOverlap.cpp), where functionalisation
would give them a meaning; of those that eager allows, the result follows from the order in which it writes, or from
which elements are one. So a graph with one is left to eager.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from stages.ir.memory import overlaps, storage_of

_NAMES = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift"
_IN_PLACE = {getattr(operator, name) for name in _NAMES.split()}


def refused_write(module: fx.GraphModule) -> fx.Node | None:
    """The first node of `module` that writes to such memory; None where there is none."""
    return next((node for node in module.graph.nodes if _is_refused(node)), None)


def _is_refused(node: fx.Node) -> bool:
    written, read = written_by(node), []
    if written is None or not _is_static(written):
        return False
    for source in node.all_input_nodes:
        value = source.meta.get("example_value")
        if isinstance(value, Tensor) and source is not node.args[0] and _is_static(value):
            read.append(value)
    seen, by_windows = _seen_through(node)
    if by_windows or any(map(overlaps_itself, [written, *seen])):
        return True
    return any(_overlap_in_part(written, other) for other in read)


def written_by(node: fx.Node) -> Tensor | None:
    """What an in-place operation of a Dynamo graph writes to; None for any other."""
    if not (_in_place(node) or node.target in _IN_PLACE or node.target is operator.setitem):
        return None
    value = _value(node.args[0])
    if value is None:
        return None
    return _part(value, node.args[1]) if node.target is operator.setitem else value


def _in_place(node: fx.Node) -> bool:
    """Whether it is a method or function with a name such as `add_`, or is told so (`inplace=True`)."""
    if node.op not in ("call_method", "call_function") or not node.args:
        return False
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    plain = str(name).partition(".")[0]
    return node.kwargs.get("inplace") is True or (plain.endswith("_") and not plain.endswith("__"))


def _seen_through(node: fx.Node) -> tuple[list[Tensor], bool]:
    """The tensors that what an in-place operation writes to is a view of, as far as the graph knows, and whether it is
    one by `unfold`.

    Through one that overlaps itself, functionalisation adds up what changed: it rounds, and infinities are lost.
    Through windows it makes zeros of what lies in none of them.
    """
    found: list[Tensor] = []
    by_windows = False
    source: Any = node.args[0]
    while (value := _value(source)) is not None and (not found or _same_memory(value, found[-1])):
        found.append(value)
        by_windows |= source.op == "call_method" and source.target == "unfold"
        source = source.args[0] if source.op != "placeholder" and source.args else None
    return [value for value in found if _is_static(value)], by_windows


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return storage_of(one) == storage_of(other)


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) and value.layout is torch.strided else None


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
    """Whether several elements are one place in memory."""
    return overlaps(tuple(tensor.shape), tensor.stride())


def _overlap_in_part(one: Tensor, other: Tensor) -> bool:
    if not one.numel() or not other.numel() or not _same_memory(one, other):
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
