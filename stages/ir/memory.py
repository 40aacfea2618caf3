"""Writing to a tensor whatever its layout. Comes in: a tensor and its new values. Goes out: that tensor, written."""

from __future__ import annotations

import torch
from torch import Tensor


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
