"""Attention over short sequences in Triton: a program for each head and some rows of queries walks over all keys.

The softmax is taken as the keys come: the sums so far are scaled down when a larger score appears (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018). Scores and sums are float32; the weights are rounded to
the type of the values before they multiply them, as libraries do.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stages.ir.operators.attention import FEW_ROWS

PDL_CAPABILITY = (9, 0)


@dataclass(frozen=True)
class Tiles:
    """rows, keys    queries of a program, and keys of one of its steps"""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def tiles_for(batch_heads: int, queries: int, keys: int) -> Tiles:
    """Tiles that were the fastest or near it at such sizes (docs/measurements/h200_attention.md)."""
    if batch_heads * queries <= FEW_ROWS:
        return Tiles(16, 64 if keys <= 64 else 128, 4, 3)
    return Tiles(64, 64, 4, 3)


@triton.jit
def attention_kernel(
    query,
    key,
    value,
    out,
    scale,
    heads,
    queries,
    keys,
    query_batch,
    query_head,
    query_row,
    key_batch,
    key_head,
    key_row,
    value_batch,
    value_head,
    value_row,
    out_batch,
    out_head,
    out_row,
    CAUSAL: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """One tile of ROWS queries of one head. Strides count elements; `scale` is in units of log 2."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    lane = tl.arange(0, DEPTH)
    column = tl.arange(0, KEYS)
    query += batch * query_batch + head * query_head
    key += batch * key_batch + head * key_head
    value += batch * value_batch + head * value_head
    out += batch * out_batch + head * out_head
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    inside = row[:, None] < queries
    q = tl.load(query + row[:, None] * query_row + lane[None, :], mask=inside, other=0.0)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, DEPTH], tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, (tl.program_id(0) + 1) * ROWS)
    for start in range(0, end, KEYS):
        at = start + column
        there = at[:, None] < keys
        k = tl.load(key + at[:, None] * key_row + lane[None, :], mask=there, other=0.0)
        v = tl.load(value + at[:, None] * value_row + lane[None, :], mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        seen = at[None, :] < keys
        if CAUSAL:
            seen = seen & (at[None, :] <= row[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(largest - larger)
        total = total * shrink + tl.sum(weights, 1)
        result = tl.dot(weights.to(v.dtype), v, result * shrink[:, None])
        largest = larger
    result = result / total[:, None]
    tl.store(out + row[:, None] * out_row + lane[None, :], result.to(q.dtype), mask=inside)


def launch(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, tiles: Tiles | None = None) -> Tensor:
    """`torchweld::attention` by the kernel, on the current stream. For shapes that `suits` takes."""
    batch, heads, queries, depth = query.shape
    keys = key.shape[2]
    tiles = tiles or tiles_for(batch * heads, queries, keys)
    out = torch.empty_like(query)
    overlaps = query.is_cuda and torch.cuda.get_device_capability(query.device) >= PDL_CAPABILITY
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    if overlaps:
        options["launch_pdl"] = True
    grid = (triton.cdiv(queries, tiles.rows), batch * heads)
    attention_kernel[grid](
        *(query, key, value, out, scale / math.log(2.0), heads, queries, keys),
        *(stride for tensor in (query, key, value, out) for stride in tensor.stride()[:3]),
        CAUSAL=causal,
        ROWS=tiles.rows,
        KEYS=tiles.keys,
        DEPTH=depth,
        OVERLAPS=overlaps,
        **options,
    )
    return out
