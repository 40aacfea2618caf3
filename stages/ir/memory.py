"""How tensors lie in memory: in which storage and where, whether elements share a place, copies in other strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def storage_of(tensor: Any) -> int | None:
    """The identity of a tensor's memory, a FakeTensor's too; None for what is no tensor or in a library's layout."""
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
        return None
    return int(tensor.untyped_storage()._cdata)


def span(tensor: Tensor) -> tuple[int, int]:
    """The first element of its storage that a strided tensor reaches, and one past the last."""
    begin = int(tensor.storage_offset())
    if 0 in tensor.shape:
        return begin, begin
    reach = sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + reach + 1


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two positions may lie at one element. Sound, and exact for every layout that slices, permutations and
    expansions of a dense tensor give: each dimension has to step over all that the smaller ones reach."""
    if 0 in shape:
        return False
    reached = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride < reached:
            return True
        reached = stride * (size - 1) + reached
    return False


def write(target: Tensor, source: Tensor) -> Tensor:
    """Copy `source` into `target`, a tensor of the same shape and of any layout; returns `target`.

    `Tensor.copy_` refuses a target of which several elements are one place in memory, as in an expanded tensor (a
    stride of 0). The elements of `source` that go to one place are taken for equal: the first of them is copied.
    """
    one_of = target
    for dim, stride in enumerate(target.stride() if target.layout is torch.strided else ()):
        if stride == 0 and target.shape[dim] > 1:
            one_of, source = one_of.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    one_of.copy_(source)
    return target


def laid_out(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """A copy of `tensor` in `strides`, which may let elements of equal value share a place."""
    return write(torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device), tensor)
