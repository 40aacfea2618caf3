"""Tensors over the memory of buffers.

A buffer's memory is given by a *base*: a tensor whose first element is the buffer's first. Views of the buffer are made
of the base's storage, whatever the base's own shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stages.ir.memory import laid_out
from stages.ir.program import BufferSpec, Geometry, TensorRef


def flat_ref(spec: BufferSpec) -> TensorRef:
    """All of a buffer as a vector."""
    return TensorRef(spec.name, (spec.size,), (1,))


def is_whole(ref: TensorRef, shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether `ref` is the very tensor of that shape and strides, which can then be used as it is."""
    return ref.dtype is None and ref.offset == 0 and ref.shape == tuple(shape) and ref.strides == tuple(strides)


def view(base: Tensor, ref: TensorRef) -> Tensor:
    """`ref` in the memory that starts with the first element of `base`.

    Where `ref.dtype` is of another size than the base's, strides and offset count elements of `ref.dtype`.
    """
    if ref.opaque or is_whole(ref, base.shape, base.stride()):
        return base
    if ref.dtype is None or ref.dtype == base.dtype:
        return base.as_strided(ref.shape, ref.strides, base.storage_offset() + ref.offset)
    start = base.storage_offset() * base.itemsize
    if start % ref.dtype.itemsize:
        raise RuntimeError(f"a view of '{ref.buffer}' as {ref.dtype} does not begin at a multiple of its element size")
    other = torch.empty(0, dtype=ref.dtype, device=base.device)
    return other.set_(base.untyped_storage(), start // ref.dtype.itemsize + ref.offset, ref.shape, ref.strides)


def viewer(ref: TensorRef, shape: Sequence[int], strides: Sequence[int]) -> Callable[[Tensor], Tensor] | None:
    """What makes `ref` of a base of that shape and strides; None where it is the base itself."""
    return None if ref.opaque or is_whole(ref, shape, strides) else lambda base: view(base, ref)


def empty(geometry: Geometry) -> Tensor:
    """New memory for a tensor that lies as `geometry` says."""
    return torch.empty_strided(geometry.shape, geometry.strides, dtype=geometry.dtype, device=geometry.device)


def same_layout(tensor: Tensor, shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether `tensor` has that shape, and those strides in each dimension in which there is a step to take."""
    return tuple(tensor.shape) == tuple(shape) and (
        tensor.numel() == 0
        or all(size == 1 or own == wanted for size, own, wanted in zip(shape, tensor.stride(), strides, strict=True))
    )


def alignment_of(device: torch.device) -> int:
    """Bytes that a base's address must be a multiple of: Triton's kernels are built for 16; C++ code needs none."""
    return 16 if device.type == "cuda" else 1


def aligned(tensor: Tensor, alignment: int) -> Tensor:
    """`tensor`, or a copy where no step could read it: a misaligned address, lazy negation or conjugation."""
    if tensor.layout is not torch.strided:
        return tensor
    if tensor.data_ptr() % alignment == 0 and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    return laid_out(tensor, tensor.stride())
