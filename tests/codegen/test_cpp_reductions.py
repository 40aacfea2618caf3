"""Reductions in C++: every combine on every type, along the lanes and across them, odd sizes, accuracy."""

from __future__ import annotations

import itertools

import pytest
import torch

from stages.codegen.cpp.operators import COMBINES
from stages.ir import ops
from stages.ir.dtype import DType
from stages.ir.expr import Buffer, load, op, reduce
from stages.ir.kernel import Store
from stages.ir.schedule import Schedule
from tests import products
from tests.codegen.kernels import F32, axes, check, flat, kernel, random_inputs, run

SCHEDULES = (Schedule(vector_width=8, unroll=2), Schedule(vector_width=4), Schedule())


def reduction(combine: str, dtype: DType, rows: int, size: int, along_lanes: bool):
    """in0 is [rows, size], reduced over its last dimension; or [size, rows], over its first."""
    parallel, inner = axes("i", rows), axes("r", size)
    order = (*parallel, *inner) if along_lanes else (*inner, *parallel)
    value = reduce(combine, inner, load(Buffer("in0", dtype, rows * size), flat(*order)))
    name = f"{combine}_{dtype}_{rows}_{size}_{'row' if along_lanes else 'column'}"
    return kernel(name, parallel, inner, Store(Buffer("out0", value.dtype, rows), flat(*parallel), value))


def legal(combine: str) -> list[DType]:
    found = []
    for dtype in DType:
        try:
            ops.reduce_dtype(combine, dtype)
        except TypeError:
            continue
        found.append(dtype)
    return found


def values(dtype: DType, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    if dtype is DType.BOOL:
        return torch.rand(size, generator=generator) < 0.1
    if dtype.is_float:
        return torch.randn(size, generator=generator, dtype=dtype.torch).round(decimals=1)
    limits = torch.iinfo(dtype.torch)
    return torch.randint(limits.min, limits.max, (size,), generator=generator, dtype=dtype.torch)


CASES = [(combine, dtype) for combine in COMBINES for dtype in legal(combine)]
SHAPES = [(3, 83, True), (83, 5, False)]


def test_the_table_names_every_combine():
    assert set(COMBINES) == ops.COMBINES


@pytest.fixture(scope="module")
def compiled(build):
    kernels = [reduction(*case, *shape) for case in CASES for shape in SHAPES]
    built = build(list(itertools.product(kernels, SCHEDULES[:2])))
    each = 2 * len(SHAPES)
    return {case: built[n * each : (n + 1) * each] for n, case in enumerate(CASES)}


@pytest.mark.parametrize(("combine", "dtype"), CASES, ids=[f"{combine}-{dtype}" for combine, dtype in CASES])
def test_combine(compiled, combine, dtype):
    for each in compiled[combine, dtype]:
        size = each.kernel.inputs[0].size
        check(each, [values(dtype, size)], rtol=1e-5)
        if dtype is DType.BOOL:
            check(each, [torch.zeros(size, dtype=torch.bool)])
            check(each, [torch.ones(size, dtype=torch.bool)])


@pytest.mark.parametrize("combine", ["max", "min", "argmax", "argmin", "sum", "prod"])
def test_nan_and_infinities_come_through_as_in_eager(compiled, combine):
    for each in compiled[combine, F32]:
        size = each.kernel.inputs[0].size
        for special in (float("nan"), float("inf"), -float("inf")):
            for place in (0, 7, size // 2, size - 1):
                inputs = values(F32, size)
                inputs[place] = special
                inputs[(place * 7 + 3) % size] = special
                check(each, [inputs])
        check(each, [torch.full((size,), float("nan"))])
        check(each, [torch.full((size,), -float("inf"))])


@pytest.mark.parametrize("combine", ["argmax", "argmin"])
def test_of_equal_extremes_the_first_is_found(compiled, combine):
    for dtype in legal(combine):
        for each in compiled[combine, dtype]:
            size = each.kernel.inputs[0].size
            check(each, [torch.zeros(size, dtype=dtype.torch)])
            check(each, [(torch.arange(size) % 3).to(dtype.torch)])


@pytest.mark.parametrize("along_lanes", [True, False], ids=["row", "column"])
def test_awkward_sizes(build, along_lanes):
    sizes = (1, 3, 7, 17, 130)
    kernels = [
        reduction(combine, F32, rows, size, along_lanes)
        for (rows, size) in itertools.product((1, 3, 17), sizes)
        for combine in ("sum", "argmax")
    ]
    for each in build([(made, SCHEDULES[0]) for made in kernels]):
        check(each, [values(F32, each.kernel.inputs[0].size)])


def test_several_inner_axes_and_a_lane_axis_that_is_not_the_last(build):
    # Channels-last memory [2, positions 15, groups 3, channels 10], reduced over positions and channels.
    (batch, group), (position, channel) = axes("i", 2, 3), axes("r", 15, 10)
    x = load(Buffer("in0", F32, 900), flat(batch, position, group, channel))
    mean = op("div", reduce("sum", (channel, position), x), load(Buffer("in1", F32, 1), flat()))
    value = op("sub", x, mean)
    made = kernel(
        "groups",
        (batch, group),
        (channel, position),
        Store(Buffer("out0", F32, 900), flat(batch, position, group, channel), value, inner=True),
        Store(Buffer("out1", F32, 6), flat(batch, group), mean),
    )
    inputs = {"in0": torch.randn(900), "in1": torch.tensor([150.0])}
    for each in build([(made, schedule) for schedule in SCHEDULES]):
        check(each, [inputs[buffer.name] for buffer in each.kernel.inputs])


@pytest.mark.parametrize("kind", ["row", "plane", "column"])
def test_long_sums_are_as_accurate_as_eagers(build, kind):
    # 16 sums of 60,000: along the lanes, along two axes of which the lanes are one, and across the lanes.
    order, dims = {
        "row": ((16, 60_000), (1,)),
        "plane": ((60, 16, 1000), (0, 2)),
        "column": ((60_000, 16), (0,)),
    }[kind]
    (parallel,) = axes("i", 16)
    inner = axes("r", *(extent for extent in order if extent != 16))
    places = [*inner]
    places.insert(order.index(16), parallel)
    total = reduce("sum", inner, load(Buffer("in0", F32, 960_000), flat(*places)))
    made = kernel(kind, (parallel,), inner, Store(Buffer("out0", F32, 16), flat(parallel), total))
    x = torch.randn(960_000, generator=torch.Generator().manual_seed(1)) + 0.1
    exact = x.double().reshape(order).sum(dims)
    eager = (x.reshape(order).sum(dims).double() - exact).abs().mean()
    for each in build([(made, schedule) for schedule in SCHEDULES]):
        assert (run(each, [x])[0].double() - exact).abs().mean() <= eager


def test_a_long_reduction_of_few_rows_is_shared_out_and_gives_the_same_on_any_number_of_threads(build):
    parallel, inner = axes("i", 2), axes("r", 40, 5000)
    x = load(Buffer("in0", F32, 400_000), flat(*parallel, *inner))
    scale = load(Buffer("in1", F32, 2), flat(*parallel))
    total = op("mul", reduce("sum", inner, op("abs", x)), scale)
    made = kernel(
        "norms",
        parallel,
        inner,
        Store(Buffer("out0", F32, 2), flat(*parallel), total),
        Store(Buffer("out1", F32, 2), flat(*parallel), reduce("max", inner, x)),
        Store(
            Buffer("out2", DType.BOOL, 2), flat(*parallel), reduce("any", inner, op("gt", x, op("mul", scale, scale)))
        ),
    )
    columns = reduction("sum", F32, 5, 90_000, False)
    inputs = {"in0": torch.rand(450_000), "in1": torch.tensor([0.25, 9.0])}
    before = torch.get_num_threads()
    try:
        for each in build([(of, schedule) for of in (made, columns) for schedule in SCHEDULES]):
            assert "_slices(" in each.source
            given = [inputs[buffer.name][: buffer.size] for buffer in each.kernel.inputs]
            found = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                check(each, given)
                found.append(run(each, given))
            assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
    finally:
        torch.set_num_threads(before)


def test_a_matrix_product_is_a_row_kernel(build):
    """On the CPU the library multiplies; a product that is a kernel all the same is right."""
    kernels = [
        products.product(7, 20, 33, F32, bias=True, epilogue=products.gelu),
        products.product(6, 5, 40, DType.BFLOAT16, batch=2, transposed=(True, True), residual=True),
        products.heads(9, 3, 8, 11),
    ]
    for each in build([(made, schedule) for made in kernels for schedule in SCHEDULES]):
        half = any(buffer.dtype is DType.BFLOAT16 for buffer in each.kernel.outputs)
        check(each, random_inputs(each.kernel), rtol=2.0**-7 if half else 1e-5, atol=2.0**-4 if half else 1e-4)
