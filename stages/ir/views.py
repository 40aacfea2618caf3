"""Views of FakeTensors with the strides that eager gives them.

Comes in: a FakeTensor and the shape it is viewed as. Goes out: eager's strides, or eager's error. torch computes them
for FakeTensors in Python, and not as its own kernel does where a dimension has one element:

* [1, 64, 256] of strides (16384, 1, 64), viewed as [1, 64, 16, 16], has 64 as its first stride in eager and 16384 in
  FakeTensors. Such a stride reaches nothing, but torch tells by it whether an image is channels last, and so lays out
  every result after it.
* [4, 1, 3] of strides (1, 12, 4) is no view of shape [12]. Eager raises; a FakeTensor takes it for one of stride 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch.utils._python_dispatch import _disable_current_modes


def is_static(*tensors: Any) -> bool:
    """Whether these are strided tensors whose sizes and strides are numbers."""
    return all(
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and all(isinstance(number, int) for number in (*tensor.shape, *tensor.stride()))
        for tensor in tensors
    )


def view_strides(source: torch.Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of `source.view(shape)` in eager; one size may be -1. Raises eager's `RuntimeError` where it is no
    view."""
    # torch's kernel for the device "meta"; tracing's dispatcher would take the one in Python.
    with _disable_current_modes(), no_python_dispatcher():
        plain = torch.empty_strided(source.shape, source.stride(), device="meta")
        return plain.view(tuple(shape)).stride()


def restrided(view: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`view`, what `source.view(view.shape)` gave under the fake mode that is on, with eager's strides."""
    if not is_static(source, view) or 1 not in (*source.shape, *view.shape):
        return view
    strides = view_strides(source, view.shape)
    return view if strides == view.stride() else torch.as_strided(source, view.shape, strides, source.storage_offset())
