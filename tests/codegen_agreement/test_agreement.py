"""The same kernels through the C++ and the Triton printer agree to within rounding."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.codegen import CodegenConfig, cpp
from stages.ir.schedule import Schedule
from tests.codegen_agreement.recipes import BINARY, CPU, REDUCTIONS, UNARY, Recipe, disagreement
from tests.codegen_triton import structures
from tests.codegen_triton.checking import assert_close, garbage, schedules_of
from tests.codegen_triton.checking import check as check_triton

# Twelve steps of slope about one each, and a few units for the order of a sum.
UNITS = 64


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    inner = draw(st.booleans())
    names = (*UNARY, *BINARY, "select", *(REDUCTIONS if inner else ()))
    step = st.tuples(st.sampled_from(names), st.integers(0, 11), st.integers(0, 11))
    return Recipe(
        rows=draw(st.integers(1, 5)),
        row_size=draw(st.integers(1, 19)),
        dtype=draw(st.sampled_from(["float32", "float64", "bfloat16", "float16"])),
        steps=tuple(draw(st.lists(step, min_size=1, max_size=12))),
        inner=inner,
    )


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    recipe=recipes(),
    vector_width=st.sampled_from([1, 8]),
    persistent=st.booleans(),
    tile=st.sampled_from([1, 4]),
)
def test_random_kernels_agree(interpret, recipe, vector_width, persistent, tile):
    ours = Schedule(tile=tile, reduce_tile=32 if persistent else 8, persistent=persistent, num_warps=1)
    theirs = Schedule(vector_width=vector_width, threads=1, persistent=persistent)
    assert interpret(disagreement, recipe, theirs, ours) <= UNITS


@pytest.fixture(scope="module")
def built():
    """All kernels of the Triton tests' structures, by the C++ printer, as one library."""
    cases = {name: build() for name, build in structures.CASES.items() if "wild" not in name}
    work = [(case.kernel, Schedule(vector_width=8, threads=1)) for case in cases.values()]
    with tempfile.TemporaryDirectory() as folder:
        compiled = cpp.compile_kernels(work, CPU, CodegenConfig(flags=("-O1",), cache_dir=folder))
        yield {name: (case, kernel) for (name, case), kernel in zip(cases.items(), compiled, strict=True)}


def check_interpreted(name: str) -> None:
    case = structures.CASES[name]()
    check_triton(case, schedules_of(case.kernel)[-1], CPU)


@pytest.mark.parametrize("name", structures.CASES)
def test_kernels_agree(name, built, interpret):
    """Both printers give what torch gives, to within the same few units."""
    case, compiled = built[name]
    outputs = case.initial or tuple(garbage(b.size, b.dtype.torch) for b in case.kernel.outputs)
    written = [tensor.clone() for tensor in outputs]
    buffers = dict(zip((*case.kernel.inputs, *case.kernel.outputs), (*case.inputs, *written), strict=True))
    compiled.bind([buffers[buffer] for buffer in case.kernel.buffers])()
    for tensor, expected in zip(written, case.expected, strict=True):
        assert_close(tensor, expected, case.ulps, case.floor)
    interpret(check_interpreted, name)
