"""Compiled Triton kernels and their launches, on CUDA and, under Triton's interpreter, on the CPU.

Comes in: (kernel, schedule) pairs. Goes out: `TritonKernel`s, each a `stages.codegen.compiled.CompiledKernel`.

Many kernels are compiled by threads: Triton's passes and LLVM release the interpreter lock and `ptxas` is a process of
its own, so threads scale, and they need none of the seconds that a pool of processes takes to import Triton.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget

from stages.codegen.triton.machine_code import ALIGNMENT, compile_module
from stages.codegen.triton.modules import cache_folder, load_module
from stages.codegen.triton.printer import print_kernel
from stages.ir.dtype import DType
from stages.ir.errors import UserError
from stages.ir.expr import Buffer
from stages.ir.kernel import IRError, Kernel
from stages.ir.schedule import Schedule


class Options(Protocol):
    """The part of codegen's config that is read here."""

    @property
    def cache_dir(self) -> str: ...


class TritonKernel:
    """One (kernel, schedule), compiled for one device; see `stages.codegen.compiled.CompiledKernel`.

    resources   of the variant for aligned addresses: `registers` a thread, `spills` (32-bit words of a thread's local
                memory), `shared` (bytes a program); empty under the interpreter
    """

    def __init__(self, kernel: Kernel, schedule: Schedule, device: torch.device, source: str, module: ModuleType):
        self.kernel = kernel
        self.schedule = schedule
        self.device = device
        self.source = source
        self.file_name = f"{module.ENTRY.removeprefix('kernel_')}_{module.__name__[-12:]}.py"
        self.module = module
        self.resources: dict[str, int] = {}
        self.cached = False
        self.error: Tensor | None = None
        if kernel.checks_index:
            # Page-locked memory of the host: a kernel can write it, and the host reads it without a wait.
            self.error = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda")
        self._variants: dict[bool, Any] = {}
        self._scratch: list[Tensor] | None = None

    @property
    def extra(self) -> list[Tensor]:
        """What a launch is given after the kernel's own buffers: the error flag, and its scratch memory.

        Launches of one kernel share the scratch memory: they run one after the other.
        """
        if self._scratch is None:
            self._scratch = [
                torch.zeros(size, dtype=DType(dtype).torch, device=self.device)
                for dtype, size in self.module.SCRATCH.values()
            ]
        return [*([] if self.error is None else [self.error]), *self._scratch]

    def compile(self, aligned: bool = True) -> None:
        """Bring the variant for (un)aligned addresses into Triton's cache; thread-safe, and touches no device."""
        start = time.time_ns()
        try:
            compiled = compile_module(self.module, _target(self.device), aligned)
        except Exception as error:
            raise IRError(f"kernel '{self.kernel.name}' under {self.schedule.text()}: Triton: {error}") from error
        if aligned:
            metadata = next(path for name, path in compiled.metadata_group.items() if name.endswith(".json"))
            self.cached = os.stat(metadata).st_mtime_ns < start
        self._variants[aligned] = compiled

    def load(self) -> None:
        """Load the machine code onto the device and fill `resources`."""
        compiled = self._variants[True]
        self.launcher(True)
        self.resources = {
            "registers": compiled.n_regs,
            "spills": compiled.n_spills,
            "shared": int(compiled.metadata.shared),
        }

    def launcher(self, aligned: bool) -> Any:
        """What launches the variant for (un)aligned addresses: called with them and `stream`."""
        if aligned not in self._variants:
            self.compile(aligned)
        with torch.cuda.device(self.device):
            return self._variants[aligned][self.module.GRID]

    def bind(self, tensors: Sequence[Tensor]) -> CudaBound | InterpretedBound:
        """The kernel on `tensors`; see `CompiledKernel.bind`."""
        if len(tensors) != len(self.kernel.buffers):
            raise IRError(
                f"kernel '{self.kernel.name}' takes {len(self.kernel.buffers)} buffers, not {len(tensors)} tensors"
            )
        for buffer, tensor in zip(self.kernel.buffers, tensors, strict=True):
            self.check(buffer, tensor)
        return InterpretedBound(self, tensors) if self.device.type == "cpu" else CudaBound(self, tensors)

    def check(self, buffer: Buffer, tensor: Tensor) -> None:
        """Raise `IRError` unless `tensor` has room for `buffer` on this device."""
        room = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize
        if tensor.device.type != self.device.type or room < buffer.size * buffer.dtype.itemsize:
            raise IRError(
                f"kernel '{self.kernel.name}': {buffer.name} takes {buffer.size} elements of {buffer.dtype} "
                f"on {self.device}, and is given {room} bytes on {tensor.device}"
            )

    def check_index(self) -> None:
        """Raise `IndexError` where a launch that has run to its end met an index out of range; waits for none."""
        if self.error is not None and self.error.item():
            self.error.zero_()
            raise IndexError(f"kernel '{self.kernel.name}': an index is out of range")


class CudaBound:
    """A kernel on device addresses. A launch computes nothing but the current stream.

    Keeps the tensors alive that it was bound to, each until its place is bound to another.
    """

    def __init__(self, kernel: TritonKernel, tensors: Sequence[Tensor]) -> None:
        self._kernel = kernel
        self._held: list[Tensor | None] = list(tensors)
        self._device = tensors[0].device.index or 0
        self._addresses = [tensor.data_ptr() for tensor in (*tensors, *kernel.extra)]
        self._stream = triton.runtime.driver.active.get_current_stream
        self._aligned: bool | None = None
        self._choose()

    def _choose(self) -> None:
        """Take the variant that these addresses allow."""
        aligned = all(address % ALIGNMENT == 0 for address in self._addresses)
        if aligned is not self._aligned:
            self._aligned = aligned
            self._launch = self._kernel.launcher(aligned)

    def __call__(self) -> None:
        if self._kernel.error is not None:
            self._kernel.check_index()
        self._launch(*self._addresses, stream=self._stream(self._device))

    def check_index(self) -> None:
        self._kernel.check_index()

    def rebind(self, position: int, tensor: Tensor) -> None:
        self._addresses[position] = tensor.data_ptr()
        self._held[position] = None
        self._choose()


class InterpretedBound:
    """A kernel on memory of the CPU, run by Triton's interpreter. Keeps its tensors alive."""

    def __init__(self, kernel: TritonKernel, tensors: Sequence[Tensor]) -> None:
        self._kernel = kernel
        self._arguments: list[Tensor] = []
        for position, tensor in enumerate(tensors):
            self._arguments.append(self._flat(position, tensor))
        self._arguments.extend(kernel.extra)

    def _flat(self, position: int, tensor: Tensor) -> Tensor:
        """The storage as the kernel's signature names it: elements of the buffer's type, bool as bytes."""
        dtype = self._kernel.kernel.buffers[position].dtype.torch
        dtype = torch.uint8 if dtype is torch.bool else dtype
        bytes_ = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage())
        return bytes_[tensor.storage_offset() * tensor.itemsize :].view(dtype)

    def __call__(self) -> None:
        module = self._kernel.module
        # Masked positions compute with whatever they hold, as on a device.
        with np.errstate(all="ignore"):
            getattr(module, module.ENTRY)[module.GRID](*self._arguments)
        self._kernel.check_index()

    def check_index(self) -> None:
        self._kernel.check_index()

    def rebind(self, position: int, tensor: Tensor) -> None:
        self._arguments[position] = self._flat(position, tensor)


def _target(device: torch.device) -> GPUTarget:
    major, minor = torch.cuda.get_device_capability(device)
    return GPUTarget("cuda", 10 * major + minor, 32)


def compile_kernels(
    work: Sequence[tuple[Kernel, Schedule]], device: torch.device, config: Options
) -> list[TritonKernel]:
    """Build `work` for `device`, in its order; equal pairs are built once.

    device   a CUDA device; the CPU where TRITON_INTERPRET was set before Triton was imported
    config   `cache_dir` is the folder for generated modules; Triton keeps machine code in its own cache

    Raises `IRError` naming the kernel and schedule where the printer or Triton refuses them, `UserError` where there is
    nothing to run on, and Triton's `OutOfResources` for a schedule that the device has not the shared memory for.
    """
    _check_device(device)
    folder = cache_folder(config.cache_dir)
    built: dict[tuple[str, str, Schedule], TritonKernel] = {}
    for kernel, schedule in work:
        key = (kernel.name, kernel.hash, schedule)
        if key not in built:
            built[key] = _print(kernel, schedule, device, folder)
    if device.type == "cuda":
        with ThreadPoolExecutor(min(len(built), os.cpu_count() or 1) or 1) as pool:
            list(pool.map(TritonKernel.compile, built.values()))
        for compiled in built.values():
            compiled.load()
    return [built[kernel.name, kernel.hash, schedule] for kernel, schedule in work]


def _print(kernel: Kernel, schedule: Schedule, device: torch.device, folder: Path) -> TritonKernel:
    source = print_kernel(kernel, schedule)
    try:
        module = load_module(source, folder)
    except OSError as error:
        raise UserError(
            f"the generated kernels cannot be written to {folder}: {error}",
            "Set codegen.cache_dir to a folder that can be written.",
        ) from error
    return TritonKernel(kernel, schedule, device, source, module)


def _check_device(device: torch.device) -> None:
    if device.type == "cuda":
        if knobs.runtime.interpret:
            raise UserError("TRITON_INTERPRET is set, and the device is CUDA", "Unset TRITON_INTERPRET.")
        if not torch.cuda.is_available():
            raise UserError("the device is CUDA, and PyTorch finds none", "Use device=cpu, or a machine with a GPU.")
    elif device.type != "cpu" or not knobs.runtime.interpret:
        raise UserError(
            f"Triton kernels do not run on '{device}'",
            "Use device=cuda; on the CPU Triton runs only interpreted, with TRITON_INTERPRET=1 in the environment.",
        )
