"""The C++ printer for the CPU: kernels with schedules -> one translation unit -> a shared library -> bound functions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from stages.codegen.compiled import CompiledKernel
from stages.codegen.config import CodegenConfig
from stages.codegen.cpp.build import build
from stages.codegen.cpp.kernel import CppKernel
from stages.codegen.cpp.printer import print_kernel
from stages.ir.kernel import Kernel
from stages.ir.schedule import Schedule

__all__ = ["compile_kernels", "print_kernel"]


def compile_kernels(
    work: Sequence[tuple[Kernel, Schedule]], device: torch.device, config: CodegenConfig
) -> list[CompiledKernel]:
    """Build `work` as one library. Raises `UserError` as `build` does."""
    symbols = [f"k_{kernel.hash}_{number}" for number, (kernel, _) in enumerate(work)]
    sources = [print_kernel(kernel, schedule, symbol) for (kernel, schedule), symbol in zip(work, symbols, strict=True)]
    library = build("\n".join(sources), config)
    built: list[CompiledKernel] = []
    for (kernel, schedule), symbol, source in zip(work, symbols, sources, strict=True):
        function = library.handle[symbol]
        function.argtypes = (ctypes.c_void_p, ctypes.c_int)
        function.restype = ctypes.c_int
        built.append(CppKernel(kernel, schedule, source, function, library.cached))
    return built
