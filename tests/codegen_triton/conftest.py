"""Where the tests of the Triton printer run: interpreted in a process of its own, on a device where there is one.

Triton reads TRITON_INTERPRET when it is imported, so interpreted kernels run in one long-lived child process that has
it set, and this process, which compiles to machine code, has not.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

Interpret = Callable[..., object]


@pytest.fixture(scope="session")
def interpret() -> Iterator[Interpret]:
    """interpret(function, *args): the result of a module-level function, called where Triton interprets."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        pool.submit(os.getpid).result()  # starts the child while the variable is set
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before
    with pool:
        yield lambda function, *args: pool.submit(function, *args).result()
