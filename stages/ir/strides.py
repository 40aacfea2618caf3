"""How torch's TensorIterator lays out the result of a pointwise operator.

Comes in: the operands, as tensors of any device or FakeTensors with numbers for sizes. Goes out: the strides of the
result in eager. The rules are those of ATen/native/TensorIterator.cpp, in words: operands of one shape and one layout
give that layout; otherwise the dimensions are ordered by the strides of the first operand that tells two apart, those
of equal stride by size, and packed in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stages.ir.index import contiguous_strides


def packed_in(order: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Packed strides of `shape`, whose dimensions lie in `order` from the innermost outwards."""
    outwards = contiguous_strides([shape[dimension] for dimension in reversed(order)])[::-1]
    of = dict(zip(order, outwards))
    return tuple(of[dimension] for dimension in range(len(shape)))


def pointwise_strides(shape: Sequence[int], operands: Sequence[torch.Tensor], scalars: bool) -> tuple[int, ...]:
    """Strides of a pointwise result of `shape`, which has elements.

    operands   tensors that broadcast to `shape`, in the operator's order
    scalars    whether a number stands among them, which counts as an operand of no dimensions
    """
    if not scalars and all(operand.shape == torch.Size(shape) for operand in operands):
        if all(operand.is_contiguous() for operand in operands):
            return contiguous_strides(shape)
        if len(shape) == 4 and all(operand.is_contiguous(memory_format=torch.channels_last) for operand in operands):
            return packed_in((1, 3, 2, 0), shape)
        strides = operands[0].stride()
        if all(operand.stride() == strides for operand in operands) and _packed(shape, strides):
            return strides
    return packed_in(_order(shape, [_broadcast(operand, shape) for operand in operands]), shape)


def _packed(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill their span, each place once."""
    step = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape) if size != 1):
        if stride != step:
            return False
        step *= size
    return True


def _broadcast(operand: torch.Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """The operand's strides over `shape`: 0 where it repeats."""
    missing = len(shape) - operand.dim()
    own = zip(operand.shape, operand.stride(), shape[missing:])
    return (0,) * missing + tuple(0 if size == 1 != wanted else stride for size, stride, wanted in own)


def _order(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions, innermost first: an insertion sort, in which pairs that no operand tells apart stay."""
    order = list(reversed(range(len(shape))))
    for start in range(1, len(order)):
        moving = start
        for other in reversed(range(start)):
            verdict = _compare(shape, operands, order[other], order[moving])
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif verdict < 0:
                break
    return order


def _compare(shape: Sequence[int], operands: Sequence[Sequence[int]], one: int, two: int) -> int:
    """1 where dimension `one` lies outside `two`, -1 where inside, 0 where nothing tells."""
    for strides in operands:
        if strides[one] == 0 or strides[two] == 0:
            continue
        if strides[one] != strides[two]:
            return 1 if strides[one] > strides[two] else -1
        if shape[one] > shape[two]:
            return 1
    return 0
