"""The child process in which Triton interprets kernels is that of the Triton printer's tests."""

from tests.codegen_triton.conftest import interpret

__all__ = ["interpret"]
