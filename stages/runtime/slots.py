"""A buffer whose memory changes from call to call, and everything that is bound to it.

Comes in: a tensor at each call. Goes out: kernels and arguments of operators that use the buffer, pointing to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from stages.ir.memory import laid_out
from stages.ir.program import BufferSpec, TensorRef
from stages.runtime.views import aligned, same_layout, viewer


class Bound(Protocol):
    """A kernel with an address for each of its parameters."""

    def __call__(self) -> None: ...

    def check_index(self) -> None: ...

    def rebind(self, position: int, tensor: Tensor) -> None: ...


class Slot:
    """The memory of a user input, a weight, an output or the result of an operator, in one frame.

    shape, strides   of the base that `put` receives
    alignment        bytes that the address of the base must be a multiple of
    tensor           the base; None between calls
    """

    __slots__ = ("_launches", "_pointer", "_views", "alignment", "shape", "spec", "strides", "tensor")

    def __init__(self, spec: BufferSpec, shape: Sequence[int], strides: Sequence[int], alignment: int) -> None:
        self.spec = spec
        self.shape = torch.Size(shape)
        self.strides = tuple(strides)
        self.alignment = alignment
        self.tensor: Tensor | None = None
        self._pointer = -1
        self._launches: list[tuple[Bound, int]] = []
        self._views: list[tuple[Any, Any, Callable[[Tensor], Tensor] | None]] = []

    def add_launch(self, kernel: Bound, position: int) -> None:
        """Keep parameter `position` of `kernel` at this memory."""
        self._launches.append((kernel, position))

    def add_view(self, container: Any, key: Any, ref: TensorRef) -> None:
        """Keep `container[key]` the tensor `ref` of this memory; None between calls."""
        container[key] = None
        self._views.append((container, key, viewer(ref, self.shape, self.strides)))

    def put(self, tensor: Tensor) -> None:
        """Make `tensor` the memory of the buffer."""
        self.tensor = tensor
        if self._launches and (pointer := tensor.data_ptr()) != self._pointer:
            self._pointer = pointer
            for kernel, position in self._launches:
                kernel.rebind(position, tensor)
        for container, key, make in self._views:
            container[key] = tensor if make is None else make(tensor)

    def take(self, result: Tensor) -> None:
        """`put` what an operator gave. Raises `RuntimeError` where its shape is not that at capture.

        Another memory layout than at capture is set right by a copy: kernels index memory, not tensors.
        """
        if result.shape != self.shape:
            raise RuntimeError(f"it gave shape {list(result.shape)}, at capture it was {list(self.shape)}")
        if result.layout is torch.strided:
            if result.stride() != self.strides and not same_layout(result, self.shape, self.strides):
                result = laid_out(result, self.strides)
            if self._launches:
                result = aligned(result, self.alignment)
        self.put(result)

    def clear(self) -> None:
        """Let go of the memory: nothing of the caller's is kept alive, and temporaries are freed."""
        self.tensor = None
        for container, key, _ in self._views:
            container[key] = None

    @property
    def now(self) -> Tensor:
        """The memory, during a call."""
        assert self.tensor is not None, f"'{self.spec.name}' has no memory between calls"
        return self.tensor
