"""Tensors that hold what compilers get wrong: NaN, infinities, signed zeros, extremes, halves between whole numbers."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
ALL = [*FLOATS, *INTEGERS, torch.bool]

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 0.1, 88.0, -88.0, 20.5]
LIMITS = [float("nan"), float("inf"), -float("inf")]
WHOLE = [0, 1, -1, 2, -2, 3, 7, -7, 100, 127, -128, 63]


def line(dtype: torch.dtype, limits: bool = True) -> Tensor:
    """One dimension of special values."""
    if dtype is torch.bool:
        return torch.tensor([False, True, True, False])
    if dtype.is_floating_point:
        return torch.tensor([*SPECIAL, *(LIMITS if limits else [])], dtype=dtype)
    return torch.tensor(WHOLE).to(dtype)


def pair(dtype: torch.dtype, limits: bool = True) -> tuple[Tensor, Tensor]:
    """Every special value against every other, by broadcasting."""
    values = line(dtype, limits)
    return values[:, None], values[None, :]


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal random numbers, the same ones for one shape; whole numbers in [-9, 9], halves of bools."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if dtype is torch.bool:
        return values > 0
    if dtype is torch.uint8:
        return (values.abs() * 3).to(dtype)
    return values.to(dtype) if dtype.is_floating_point else (values * 3).round().clamp(-9, 9).to(dtype)
