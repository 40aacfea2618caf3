"""Which node owns the memory that a node's value lies in, and how the value lies in it.

Comes in: nodes with FakeTensors in `meta["val"]`. Goes out: the owner, and shape, strides and offset in elements of it.
Found by the identity of the FakeTensors' storages, so it holds for any view operator, whether it has a lowering or not.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx

from stages.ir.graph import values_of


class Base(NamedTuple):
    """Where a value lies: in the memory of `node`, which is the value's own node unless it is a view."""

    node: fx.Node
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def tensor_of(node: fx.Node) -> Tensor | None:
    """The tensor (FakeTensor, or the real one of a `get_attr`) that `node` gives; None where it gives no single one."""
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = _attribute(node)
    return value if isinstance(value, Tensor) else None


def _attribute(node: fx.Node) -> object:
    found: object = node.graph.owning_module
    for name in str(node.target).split("."):
        found = getattr(found, name, None)
    return found


def base_of(node: fx.Node) -> Base:
    """The owner of the memory of `node`, and where in it `node` lies.

    The offset counts from the first element that the owner itself reaches: the program is given that element's address,
    also where the owner is a placeholder that is itself a view of a larger tensor of the user's. Two placeholders that
    share storage own it each. The chain ends where the bytes are reinterpreted as another type (`view.dtype`): such a
    node counts as an owner. Raises `TypeError` for a node that gives no single tensor.
    """
    tensor = tensor_of(node)
    if tensor is None:
        raise TypeError(f"{node.name} gives no single tensor")
    owner = node
    while (source := _source(owner)) is not None:
        owner = source
    start = tensor_of(owner)
    assert start is not None
    offset = int(tensor.storage_offset()) - int(start.storage_offset())
    return Base(owner, tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), offset)


def is_view(node: fx.Node) -> bool:
    """Whether `node` gives a tensor, or several, that all lie in an input's memory."""
    if tensor_of(node) is not None:
        return _source(node) is not None
    tensors = [value for value in values_of(node) if isinstance(value, Tensor)]
    inputs = {_storage(tensor) for source in node.all_input_nodes if (tensor := tensor_of(source)) is not None}
    return bool(tensors) and node.op == "call_function" and all(_storage(tensor) in inputs for tensor in tensors)


def _source(node: fx.Node) -> fx.Node | None:
    """The input whose storage `node` shares, one step up the chain of views; None at an owner."""
    tensor = tensor_of(node)
    if tensor is None or node.op != "call_function":
        return None
    maker = node
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        maker = node.args[0]
    storage = _storage(tensor)
    for source in maker.all_input_nodes:
        given = tensor_of(source)
        if given is not None and given.dtype == tensor.dtype and storage is not None and _storage(given) == storage:
            return source
    return None


def _storage(tensor: Tensor) -> int | None:
    """The identity of a tensor's storage; None for a layout that has none."""
    if tensor.layout is not torch.strided or tensor.is_sparse:
        return None
    return int(tensor.untyped_storage()._cdata)


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of storage from the first to the last that a layout reaches; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
