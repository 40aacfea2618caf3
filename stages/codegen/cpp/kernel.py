"""A compiled C++ kernel and its binding to memory: one ctypes call with an array of addresses that is made once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stages.ir.kernel import IRError, Kernel
from stages.ir.schedule import Schedule


@dataclass(frozen=True)
class CppKernel:
    """See `compiled.CompiledKernel`. `function(buffers, threads)` is the entry point."""

    kernel: Kernel
    schedule: Schedule
    source: str
    function: Callable[..., int]
    cached: bool
    resources: dict[str, int] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        width = f"w{self.schedule.vector_width}u{self.schedule.unroll}"
        return f"{self.kernel.name}_{self.kernel.hash}_{width}.cpp"

    def bind(self, tensors: Sequence[Tensor]) -> BoundCppKernel:
        buffers = self.kernel.buffers
        if len(tensors) != len(buffers):
            raise IRError(f"kernel '{self.kernel.name}' has {len(buffers)} buffers, not {len(tensors)}")
        for buffer, tensor in zip(buffers, tensors, strict=True):
            storage = tensor.untyped_storage()
            held = storage.nbytes() - tensor.storage_offset() * tensor.element_size()
            if tensor.device.type != "cpu" or held < buffer.size * buffer.dtype.itemsize:
                raise IRError(
                    f"kernel '{self.kernel.name}': {buffer.name} is {buffer.dtype}[{buffer.size}], which {held} bytes "
                    f"on {tensor.device} are too few for"
                )
        return BoundCppKernel(self, tensors)


class BoundCppKernel:
    """See `compiled.BoundKernel`. The call holds no lock of Python's."""

    def __init__(self, compiled: CppKernel, tensors: Sequence[Tensor]) -> None:
        self._name = compiled.kernel.name
        self._function = compiled.function
        self._most = compiled.schedule.threads or 1 << 30
        self._held: list[Tensor | None] = list(tensors)
        self._addresses = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))

    def __call__(self) -> None:
        if self._function(self._addresses, min(self._most, torch.get_num_threads())):
            raise IndexError(f"index out of range in kernel '{self._name}'")

    def check_index(self) -> None:
        """Nothing is left to say: a launch raises its own error."""

    def rebind(self, position: int, tensor: Tensor) -> None:
        self._addresses[position] = tensor.data_ptr()
        self._held[position] = None
