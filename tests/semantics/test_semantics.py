"""Every case through both doors, and those that our kernels compute through the Triton printer, against eager."""

from __future__ import annotations

import pytest

from tests.semantics.cases import CASES
from tests.semantics.interpreted import check
from tests.semantics.run import compiled, optimized

# Kernels of ours, without a special layout or state of the host: the same programs with Triton's kernels in them.
INTERPRETED = [
    name
    for name in CASES
    if name.startswith(("floats: ", "integers: ")) and not any(word in name for word in ("alone", "error", "float64"))
]
INTERPRETED += ["tensors: indices", "tensors: strided", "tensors: images", "tensors: nothing", "tensors: 0-dim"]


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
