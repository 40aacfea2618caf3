"""Attention as it is tried: shapes, and where the operands lie."""

from __future__ import annotations

import torch
from torch import Tensor

# batch, heads, queries, keys, depth, causal
SHAPES = {
    "whole tiles": (1, 2, 32, 64, 16, False),
    "odd": (2, 3, 19, 37, 32, False),
    "one query": (1, 2, 1, 9, 16, False),
    "causal": (1, 2, 70, 70, 16, True),
    "causal, more keys": (1, 1, 5, 40, 16, True),
    "causal, fewer keys": (1, 1, 40, 5, 16, True),
}


def operands(name: str, dtype: torch.dtype, merged: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value; `merged` as slices of one projection [batch, tokens, 3, heads, depth]."""
    batch, heads, queries, keys, depth, _ = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    tokens = max(queries, keys)
    whole = torch.randn(batch, tokens, 3, heads, depth, generator=generator).to(dtype)
    query, key, value = whole.permute(2, 0, 3, 1, 4).unbind()
    cut = query[:, :, :queries], key[:, :, :keys], value[:, :, :keys]
    return cut if merged else tuple(tensor.contiguous() for tensor in cut)  # type: ignore[return-value]


def expected(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Tensor:
    """In float64, by the formula."""
    query, key, value = (tensor.double() for tensor in (query, key, value))
    scores = query @ key.transpose(-1, -2) * scale
    if causal:
        scores = scores.masked_fill(
            ~torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(), -torch.inf
        )
    return torch.softmax(scores, -1) @ value
