"""Where the tensors of a graph lie. Comes in: nodes. Goes out: owners, sizes and layouts, each found once.

FakeTensors are slow to ask, and grouping asks often. A `Memory` is made for graphs that do not change any more.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import fx

from stages.fusion.lowering.storage import Base, base_of, extent, tensor_of


class Memory:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self._bases: dict[fx.Node, Base] = {}
        self._sizes: dict[fx.Node, int] = {}
        self._layouts: dict[fx.Node, Hashable] = {}

    def base(self, node: fx.Node) -> Base:
        """The owner of the memory of the tensor that `node` gives, and where in it the tensor lies."""
        if node not in self._bases:
            self._bases[node] = base_of(node)
        return self._bases[node]

    def owner(self, node: fx.Node) -> fx.Node:
        """The node that owns the memory of the tensor that `node` gives."""
        return self.base(node).node

    def size(self, value: fx.Node) -> int:
        """Elements of the storage of a value."""
        if value not in self._sizes:
            base = self.base(value)
            packed = is_opaque(value)
            self._sizes[value] = int(value.meta["val"].numel()) if packed else extent(base.shape, base.strides)
        return self._sizes[value]

    def nbytes(self, value: fx.Node) -> int:
        """Bytes of the storage of a value."""
        return self.size(value) * int(value.meta["val"].dtype.itemsize)

    def layout(self, node: fx.Node) -> Hashable:
        """Shape, strides, offset, type and device of what `node` gives, as a key."""
        if node not in self._layouts:
            value = tensor_of(node)
            self._layouts[node] = _layout(node.meta.get("val") if value is None else value)
        return self._layouts[node]


def is_tensor(node: fx.Node) -> bool:
    """Whether `node` gives one tensor."""
    return tensor_of(node) is not None


def is_opaque(value: fx.Node) -> bool:
    """Whether the tensor of `value` has no strides: oneDNN's packed layout; its fake value only tells the shape."""
    tensor = tensor_of(value)
    return bool(value.meta.get("opaque")) or (tensor is not None and tensor.layout is not torch.strided)


def lies_on(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether `tensor` is on `device`; a device without a number ("cuda") is any of its type."""
    found = tensor.device
    return found.type == device.type and (found.index == device.index or None in (found.index, device.index))


def _layout(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device, value.layout
    if isinstance(value, (tuple, list)):
        return tuple(map(_layout, value))
    return value


def freeze(argument: Any, place: Any) -> Hashable:
    """An argument of a node as a key: nodes by `place(node)`, numbers with their type (1, 1.0 and True differ)."""
    if isinstance(argument, fx.Node):
        return place(argument)
    if isinstance(argument, (tuple, list)):
        return tuple(freeze(item, place) for item in argument)
    if isinstance(argument, dict):
        return tuple((name, freeze(item, place)) for name, item in argument.items())
    if isinstance(argument, slice):
        return ("slice", *(freeze(item, place) for item in (argument.start, argument.stop, argument.step)))
    return (type(argument).__name__, repr(argument) if isinstance(argument, float) else argument)
