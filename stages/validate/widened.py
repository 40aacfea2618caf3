"""Operators that torch has for narrower floats only, in float64: what the reference runs in their place.

The formula of each is its operator's documented one, by products and sums that torch has in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def grouped_product(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`aten._grouped_mm`: the product of each group g, whose end along the grouped dimension is offs[g] (int32[G]).

    [R, K] @ [G, K, N] -> [R, N]     rows are grouped; those behind the last group are zero (torch: undefined)
    [G, M, K] @ [K, C] -> [M, C]     columns are grouped
    [M, K] @ [K, N] -> [G, M, N]     the summed dimension is grouped
    [G, M, K] @ [G, K, N] -> [G, M, N], without offs
    """
    if left.ndim == 3 and right.ndim == 3:
        return torch.bmm(left, right)
    assert offs is not None
    ends = offs.tolist()
    groups = list(enumerate(zip([0, *ends[:-1]], ends)))
    if left.ndim == 2 and right.ndim == 2:
        return torch.stack([left[:, start:end] @ right[start:end] for _, (start, end) in groups])
    if left.ndim == 2:
        result = left.new_zeros(left.shape[0], right.shape[2])
        for number, (start, end) in groups:
            result[start:end] = left[start:end] @ right[number]
        return result
    result = left.new_zeros(left.shape[1], right.shape[1])
    for number, (start, end) in groups:
        result[:, start:end] = left[number] @ right[:, start:end]
    return result


def _table() -> dict[Any, Callable[..., torch.Tensor]]:
    grouped = getattr(torch.ops.aten, "_grouped_mm", None)
    return {} if grouped is None else {grouped.default: grouped_product}


IN_FLOAT64 = _table()
