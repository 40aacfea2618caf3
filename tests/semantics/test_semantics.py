"""Every case through both doors, and those that our kernels compute through the Triton printer, against eager."""

from __future__ import annotations

import pytest

from tests.semantics.cases import CASES
from tests.semantics.interpreted import check
from tests.semantics.run import compiled, optimized

# One of each kind that our kernels compute: the same programs with Triton's kernels in them.
INTERPRETED = [
    *(f"floats: {name}, {dtype}" for dtype in ("float32", "bfloat16") for name in ("extremes", "limits", "unary")),
    *(f"floats: {name} of rows, float32" for name in ("extremes", "sums")),
    "floats: arithmetic, float32",
    "floats: softmax of -inf",
    *(f"integers: {name}, int32" for name in ("divided by numbers", "arithmetic", "rows")),
    *("integers: shifts, int8", "integers: arithmetic, uint8", "integers: bools"),
    *("integers: float32, small, to whole numbers", "integers: float32, huge, to whole numbers"),
    *("tensors: strided", "tensors: images", "tensors: nothing", "tensors: 0-dim"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_compiled(name):
    assert not compiled(CASES[name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.optimize])
def test_optimized(name):
    assert not optimized(CASES[name])


@pytest.mark.parametrize("name", INTERPRETED)
def test_interpreted(name, interpret):
    assert not interpret(check, name)
