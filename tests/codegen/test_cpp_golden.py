"""The C++ of two small kernels, whole, so that a change of the printer is seen in review.

To take a change over: write what `print_kernel` gives into tests/codegen/golden/.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.codegen.cpp import print_kernel
from stages.ir.schedule import Schedule
from tests.codegen.kernels import softmax
from tests.codegen.test_cpp_memory import embedding

GOLDEN = Path(__file__).parent / "golden"
KERNELS = {
    "softmax": (softmax(4096, 197), Schedule(vector_width=8, unroll=2)),
    "embedding": (embedding(), Schedule(vector_width=8)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_source(name):
    assert print_kernel(*KERNELS[name]) == (GOLDEN / f"{name}.cpp").read_text()


def test_equal_kernels_print_alike():
    assert print_kernel(softmax(4096, 197), KERNELS["softmax"][1]) == print_kernel(*KERNELS["softmax"])
