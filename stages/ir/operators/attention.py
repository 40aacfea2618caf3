"""`torchweld::attention`: softmax(scale · query keyᵀ) value without a mask, or causal, for short sequences.

Libraries tune attention for long sequences: a call of theirs on 128 tokens is a clearing of scratch memory and a kernel
that cannot begin before the one ahead has ended. Here it is one kernel that overlaps with its neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
DEPTHS = (16, 32, 64, 128)
# What the kernel is taken for: more keys, and more products of a query with a key, are the library's, which leaves out
# tiles that a causal mask hides and so wins sooner there (docs/measurements/h200_attention.md).
MOST_KEYS = 512
# Below so many rows of queries, over all heads, there is a processor for each tile of 16; above, a depth of 128 is the
# library's too.
FEW_ROWS = 2048
MOST_TERMS = {False: 1 << 30, True: 1 << 28}

_library = torch.library.Library("torchweld", "DEF")
_library.define("attention(Tensor query, Tensor key, Tensor value, float scale, bool causal) -> Tensor")
OPERATOR = torch.ops.torchweld.attention.default


def suits(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> bool:
    """Whether the kernel computes this and should be faster than the library.

    query         [batch, heads, queries, depth], of a half type, elements of `depth` side by side
    key, value    [batch, heads, keys, depth], likewise
    causal        query i sees the keys up to i
    """
    tensors = (query, key, value)
    if any(t.dim() != 4 or t.dtype not in HALF or t.stride(-1) != 1 or t.numel() >= 1 << 31 for t in tensors):
        return False
    batch, heads, queries, depth = query.shape
    same = len({t.dtype for t in tensors}) == 1 and key.shape == value.shape == (batch, heads, key.shape[2], depth)
    keys = key.shape[2]
    terms = batch * heads * queries * keys * depth
    if depth == 128 and batch * heads * queries > FEW_ROWS:
        return False
    return bool(same and depth in DEPTHS and 0 < keys <= MOST_KEYS and 0 < terms <= MOST_TERMS[causal])


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Tensor:
    """softmax over keys of (scale · query keyᵀ), times value; sums in float32, shapes as in `suits`.

    causal    query i sees the keys up to i
    Returns [batch, heads, queries, depth], whose dimensions lie in memory in the order of the query's.
    """
    return OPERATOR(query, key, value, scale, causal)


def _by_torch(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Tensor:
    result = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
    return torch.empty_like(query).copy_(result)


def _by_kernel(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Tensor:
    if not suits(query, key, value, causal):  # a debugging run in float64
        return _by_torch(query, key, value, scale, causal)
    from stages.ir.operators.attention_kernel import launch

    return launch(query, key, value, scale, causal)


def _shape(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Tensor:
    return torch.empty_like(query)


_library.impl("attention", _by_torch, "CPU")
_library.impl("attention", _by_kernel, "CUDA")
torch.library.register_fake("torchweld::attention", _shape, lib=_library)
