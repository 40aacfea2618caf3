"""Agreement tests run Triton kernels interpreted, in the child process that the Triton tests use."""

from tests.codegen_triton.conftest import interpret

__all__ = ["interpret"]
