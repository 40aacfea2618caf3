"""Codegen: (Kernel, Schedule) -> source -> something to call. C++ on the CPU, Triton on CUDA.

Comes in: a `Program`, or kernels with schedules from the autotuner. Goes out: `Compiled`, or `CompiledKernel`s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from stages.codegen.compiled import BoundKernel, Compiled, CompiledKernel
from stages.codegen.config import CodegenConfig
from stages.ir.errors import UserError
from stages.ir.kernel import Kernel, verify
from stages.ir.program import Program
from stages.ir.schedule import Schedule
from stages.ir.schedule import default_schedule as by_size

__all__ = [
    "BoundKernel",
    "CodegenConfig",
    "Compiled",
    "CompiledKernel",
    "check_toolchain",
    "compile_kernels",
    "default_schedule",
    "run",
]


def run(program: Program, config: CodegenConfig) -> Compiled:
    """Build each different (kernel, schedule) of `program` once, all in one go.

    Raises `UserError` where there is no compiler for the device, or it refuses the code.
    """
    start = time.perf_counter()
    work: dict[tuple[str, Schedule | None], tuple[Kernel, Schedule]] = {}
    for launch in program.launches:
        schedule = launch.schedule or default_schedule(launch.kernel, program.device)
        work.setdefault((launch.kernel.hash, launch.schedule), (launch.kernel, schedule))
    built = compile_kernels(tuple(work.values()), program.device, config)
    return Compiled(
        kernels=dict(zip(work, built, strict=True)),
        sources={kernel.file_name: kernel.source for kernel in built},
        seconds=time.perf_counter() - start,
        cached=all(kernel.cached for kernel in built),
    )


def check_toolchain(device: torch.device, config: CodegenConfig) -> None:
    """Raise `UserError` where what builds kernels for `device` is missing, before anybody has waited for anything."""
    if device.type == "cpu":
        from stages.codegen.cpp.compiler import find_compiler

        find_compiler(config)


def compile_kernels(
    work: Sequence[tuple[Kernel, Schedule]], device: torch.device, config: CodegenConfig
) -> list[CompiledKernel]:
    """Build `work` for `device`, in its order. Raises as `run` does."""
    if config.debug:
        for kernel, _ in work:
            verify(kernel)
    if not work:
        return []
    if device.type == "cpu":
        from stages.codegen import cpp

        return cpp.compile_kernels(work, device, config)
    if device.type == "cuda":
        from stages.codegen import triton  # type: ignore[attr-defined, unused-ignore]

        return triton.compile_kernels(work, device, config)
    raise UserError(f"there is no printer for device '{device}'", "Use device=cpu or device=cuda.")


def default_schedule(kernel: Kernel, device: torch.device) -> Schedule:
    """The schedule of a kernel that was not tuned."""
    if device.type == "cpu":
        from stages.codegen.cpp import default

        return default(kernel)
    return by_size(kernel.rows, kernel.row_size, device.type)
