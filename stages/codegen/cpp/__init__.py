"""The C++ printer for the CPU: kernels with schedules -> one translation unit -> a library -> bound functions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch

from stages.codegen.compiled import CompiledKernel
from stages.codegen.config import CodegenConfig
from stages.codegen.cpp.build import build_library
from stages.codegen.cpp.compiler import float_lanes
from stages.codegen.cpp.kernel import CppKernel
from stages.codegen.cpp.plan import plan
from stages.codegen.cpp.printer import print_kernel
from stages.ir.kernel import Kernel
from stages.ir.schedule import Schedule, default_schedule

__all__ = ["compile_kernels", "default", "print_kernel"]


def compile_kernels(
    work: Sequence[tuple[Kernel, Schedule]], device: torch.device, config: CodegenConfig
) -> list[CompiledKernel]:
    """Build `work` as one library. Raises `UserError` as `build_library` does."""
    symbols = [f"k_{kernel.hash}_{number}" for number, (kernel, _) in enumerate(work)]
    sources = [print_kernel(kernel, schedule, symbol) for (kernel, schedule), symbol in zip(work, symbols, strict=True)]
    library = build_library("\n".join(sources), config)
    built: list[CompiledKernel] = []
    for (kernel, schedule), symbol, source in zip(work, symbols, sources, strict=True):
        function = library.handle[symbol]
        function.argtypes = (ctypes.c_void_p, ctypes.c_int)
        function.restype = ctypes.c_int
        built.append(CppKernel(kernel, schedule, source, function, library.cached))
    return built


def default(kernel: Kernel) -> Schedule:
    """The schedule of a kernel that was not tuned.

    Where lanes lie across a row, each step along it reads a few neighbouring elements far from the last: more of them
    at once make better use of cache lines and pages.
    """
    schedule = default_schedule(kernel.rows, kernel.row_size, "cpu", float_lanes())
    across = bool(kernel.inner) and not plan(kernel, schedule).lanes_in_row
    return replace(schedule, unroll=4) if across else schedule
