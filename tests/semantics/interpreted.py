"""Runs a case with Triton kernels, interpreted: in a child process that has TRITON_INTERPRET set (see conftest)."""

from __future__ import annotations

from unittest import mock

from stages.codegen import by_size, cpp, triton
from stages.ir.kernel import Kernel
from stages.ir.schedule import Schedule
from tests.semantics.cases import CASES
from tests.semantics.run import compiled


def _schedule(kernel: Kernel) -> Schedule:
    return by_size(kernel.rows, kernel.row_size, "cuda")


def check(name: str) -> str:
    """Where case `name` differs from eager, its kernels printed as Triton in place of C++; empty where it does not.

    The sign of zero is that of CUDA's eager, which differs from the CPU's in maximum and minimum: it is not compared.
    """
    with (
        mock.patch.object(cpp, "compile_kernels", triton.compile_kernels),
        mock.patch.object(cpp, "default", _schedule),
    ):
        return compiled(CASES[name], signed_zeros=False)
