"""The runtime stage: a planned Program and its built kernels in, an `Executable` out."""

from __future__ import annotations

from stages.ir.program import Program
from stages.runtime.config import RuntimeConfig
from stages.runtime.errors import InputMismatch, StaleProgram, StepError
from stages.runtime.executable import Executable
from stages.runtime.frame import Compiled

__all__ = ["Executable", "InputMismatch", "RuntimeConfig", "StaleProgram", "StepError", "run"]


def run(program: Program, compiled: Compiled, config: RuntimeConfig) -> Executable:
    """`program` as something to call.

    compiled: codegen's, with `kernels[hash, schedule]` for each launch of the program.
    Raises `IRError` where the program is not complete: no plan, no geometry of an input, a kernel that was not built.
    """
    return Executable(program, compiled, config)
