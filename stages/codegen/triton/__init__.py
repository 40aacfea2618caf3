"""The Triton printer: (Kernel, Schedule) -> Triton source -> something to launch.

Comes in: kernels with schedules. Goes out: sources (`print_kernel`, which needs no Triton), compiled kernels
(`compile_kernels`), and what their machine code needs (`check_machine_code`, which needs no GPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from stages.codegen.compiled import CompiledKernel
from stages.codegen.triton.printer import print_kernel
from stages.ir.kernel import Kernel
from stages.ir.schedule import Schedule

if TYPE_CHECKING:
    from stages.codegen.triton.launch import Options

__all__ = ["check_machine_code", "compile_kernels", "print_kernel"]


def compile_kernels(
    work: Sequence[tuple[Kernel, Schedule]], device: torch.device, config: Options
) -> list[CompiledKernel]:
    """Build `work` for `device`, in its order; see `launch.compile_kernels`."""
    from stages.codegen.triton import launch

    return list(launch.compile_kernels(work, device, config))


def check_machine_code(kernel: Kernel, schedule: Schedule, capability: int) -> dict[str, int]:
    """Registers, spills and shared memory of `kernel` on a GPU; see `machine_code.check_machine_code`."""
    from stages.codegen.triton import machine_code

    return machine_code.check_machine_code(kernel, schedule, capability)
