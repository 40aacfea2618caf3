"""Every operator and every conversion of the loop IR in C++, on every type that is legal, against torch eager."""

from __future__ import annotations

import itertools

import pytest
import torch

from stages.codegen.cpp.operators import FUNCTIONS
from stages.ir.dtype import DType
from stages.ir.expr import cast, const, op, select
from stages.ir.ops import OPS, Rule, result_dtype
from stages.ir.schedule import Schedule
from tests.codegen.kernels import check, pointwise, run
from tests.codegen.reference import EAGER

SIZE = 96  # full vectors only, so that each body is printed and compiled once; test_cpp_schedules.py has the odd sizes
COMPUTE = [dtype for dtype in DType if not dtype.is_half]
SCHEDULES = (Schedule(vector_width=8, unroll=2), Schedule())


def test_the_table_names_every_operator():
    assert set(FUNCTIONS) == set(OPS) == set(EAGER)


def values(dtype: DType, seed: int, positive: bool = False) -> torch.Tensor:
    """Samples of `dtype` with its special values; `positive` (of whole numbers): 1 and more, for divisors."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is DType.BOOL:
        return torch.rand(SIZE, generator=generator) < 0.5
    if dtype.is_float:
        special = [
            0.0,
            -0.0,
            float("inf"),
            -float("inf"),
            float("nan"),
            1.0,
            -1.0,
            0.5,
            1.5,
            2.5,
            -0.5,
            -2.5,
            3e38,
            1e-40,
        ]
        rest = torch.randn(SIZE - len(special), generator=generator, dtype=torch.float64) * 3
        return torch.cat([torch.tensor(special, dtype=torch.float64), rest]).to(dtype.torch)
    limits = torch.iinfo(dtype.torch)
    low = 1 if positive else limits.min
    made = torch.randint(low, limits.max, (SIZE,), generator=generator, dtype=dtype.torch)
    made[:2] = torch.tensor([low, limits.max])
    return made


def legal(name: str) -> list[DType]:
    found = []
    for dtype in COMPUTE:
        try:
            result_dtype(name, (dtype,) * OPS[name].arity)
        except TypeError:
            continue
        found.append(dtype)
    return found


CASES = [(name, dtype) for name in OPS if OPS[name].rule is not Rule.INDEX for dtype in legal(name)]


def operands(name: str, dtype: DType) -> list[torch.Tensor]:
    made = [values(dtype, seed) for seed in range(OPS[name].arity)]
    if dtype.is_integer and name in ("floordiv", "truncdiv", "mod", "fmod"):
        made[1] = values(dtype, 1, positive=True)
        made[1][5:40] = made[1][5:40] % 7 + 1
        if dtype is not DType.UINT8:
            made[1][20:60] = -made[1][20:60]
    if name in ("shl", "shr"):
        made[1] = torch.arange(SIZE) % (8 * dtype.itemsize)
        made[1] = made[1].to(dtype.torch)
    return made


@pytest.fixture(scope="module")
def compiled(build):
    kernels = [
        pointwise(f"{name}_{dtype}", SIZE, lambda *args, name=name: op(name, *args), *[dtype] * OPS[name].arity)
        for name, dtype in CASES
    ]
    vectors = build([(kernel, SCHEDULES[0]) for kernel in kernels])
    # Scalar code is the same templates, so that one type of each kind will do.
    chosen = [n for n, (_, dtype) in enumerate(CASES) if dtype in (DType.FLOAT32, DType.INT32, DType.UINT8, DType.BOOL)]
    scalars = dict(zip(chosen, build([(kernels[n], SCHEDULES[1]) for n in chosen]), strict=True))
    return {
        case: [vector, *([scalars[n]] if n in scalars else [])]
        for n, (case, vector) in enumerate(zip(CASES, vectors, strict=True))
    }


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=[f"{name}-{dtype}" for name, dtype in CASES])
def test_operator(compiled, name, dtype):
    inputs = operands(name, dtype)
    for kernel in compiled[name, dtype]:
        if dtype.is_float and OPS[name].rule is Rule.FLOAT:
            (found,) = run(kernel, inputs)
            exact = EAGER[name](*(x.double() for x in inputs)).to(dtype.torch)
            torch.testing.assert_close(
                found, exact, rtol=3e-7 if dtype is DType.FLOAT32 else 1e-15, atol=0, equal_nan=True
            )
        else:
            check(kernel, inputs, rtol=0, atol=0)


@pytest.mark.parametrize(
    "name",
    ["floor", "ceil", "round", "trunc", "sqrt", "neg", "abs", "copysign", "expm1", "tanh", "erf", "sin", "log1p"],
)
def test_the_sign_of_zero_is_eagers(compiled, name):
    inputs = operands(name, DType.FLOAT32)
    for kernel in compiled[name, DType.FLOAT32]:
        (found,) = run(kernel, inputs)
        zero = EAGER[name](*inputs) == 0
        assert torch.equal(torch.signbit(found)[zero], torch.signbit(EAGER[name](*inputs))[zero])


@pytest.fixture(scope="module")
def conversions(build):
    pairs = list(itertools.product(DType, DType))
    kernels = [pointwise(f"cast_{a}_{b}", SIZE, lambda x, b=b: cast(x, b), a) for a, b in pairs]
    built = build(list(itertools.product(kernels, SCHEDULES)))
    return {pair: built[n * len(SCHEDULES) : (n + 1) * len(SCHEDULES)] for n, pair in enumerate(pairs)}


@pytest.mark.parametrize(("source", "target"), itertools.product(DType, DType), ids=str)
def test_conversion(conversions, source, target):
    inputs = values(source.compute, 0).to(source.torch)
    if source.is_float and target.is_integer:
        # Out of the range of the target, C leaves the result open; torch differs between machines.
        inputs = torch.nan_to_num(inputs, 0, 0, 0).clamp(0 if target is DType.UINT8 else -100, 100)
    wanted = inputs.to(target.torch)
    for kernel in conversions[source, target]:
        (found,) = run(kernel, [inputs])
        assert torch.equal(torch.isnan(found), torch.isnan(wanted))
        number = ~torch.isnan(wanted)
        assert torch.equal(found[number], wanted[number])


@pytest.mark.parametrize("half", [DType.BFLOAT16, DType.FLOAT16], ids=str)
def test_every_half_value_comes_in_and_floats_round_to_nearest_even(build, half):
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(half.torch)
    near = torch.cat([every.float(), torch.nextafter(every.float(), torch.tensor(0.0)), every.float() * (1 + 2.0**-11)])
    ties = (every[1:].float() + every[:-1].float()) / 2
    floats = torch.cat([near, ties])
    to_float = pointwise("in", len(every), lambda x: x, half)
    to_half = pointwise("out", len(floats), lambda x: cast(x, half), DType.FLOAT32)
    for schedule in SCHEDULES:
        wide, narrow = build([(to_float, schedule), (to_half, schedule)])
        torch.testing.assert_close(run(wide, [every])[0], every.float(), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(run(narrow, [floats])[0], floats.to(half.torch), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", list(COMPUTE), ids=str)
def test_select_takes_sides_of_any_type_under_a_mask_of_any_width(build, dtype):
    inputs = [values(DType.FLOAT64, 0), values(DType.INT8, 1), values(dtype, 2), values(dtype, 3)]

    def compute(a, b, yes, no):
        both = op(
            "and", op("gt", a, cast(b, DType.FLOAT64)), op("or", op("lt", b, cast(a, DType.INT8)), op("isnan", a))
        )
        return select(op("xor", both, op("not", op("isinf", a))), yes, no)

    inputs[0] = torch.nan_to_num(inputs[0], 0.0, 0.0, 0.0).clamp(-100, 100)
    made = pointwise(f"select_{dtype}", SIZE, compute, DType.FLOAT64, DType.INT8, dtype, dtype)
    for kernel in build([(made, schedule) for schedule in SCHEDULES]):
        check(kernel, inputs, rtol=0, atol=0)


def test_select_takes_masks_of_any_width_for_its_sides(build):
    """A comparison's mask is as wide as what was compared; a bool `select` may have two such for its sides."""

    def compute(a, b, c):
        narrow, wide = op("gt", b, const(0, DType.INT8)), op("lt", c, const(3, DType.INT64))
        known = op("gt", a, const(0.0, DType.FLOAT64))
        parts = [
            select(known, narrow, const(False, DType.BOOL)),
            select(wide, const(True, DType.BOOL), narrow),
            select(narrow, wide, known),
        ]
        count = const(0, DType.INT32)
        for place, part in enumerate(parts):
            count = op("add", count, op("mul", cast(part, DType.INT32), const(1 << place, DType.INT32)))
        return count

    inputs = [values(DType.FLOAT64, 0), values(DType.INT8, 1), values(DType.INT64, 2)]
    made = pointwise("masks", SIZE, compute, DType.FLOAT64, DType.INT8, DType.INT64)
    a, b, c = inputs
    narrow, wide, known = b > 0, c < 3, a > 0
    parts = [known & narrow, wide | narrow, torch.where(narrow, wide, known)]
    wanted = sum(part.int() << place for place, part in enumerate(parts))
    for kernel in build([(made, schedule) for schedule in SCHEDULES]):
        assert torch.equal(run(kernel, inputs)[0], wanted)


@pytest.mark.parametrize("wide", [DType.FLOAT64, DType.INT16], ids=str)
def test_select_takes_bool_sides_that_were_compared_in_other_types(build, wide):
    """Each mask is as wide as what was compared: three widths meet, or a literal and another."""
    inputs = [values(DType.BOOL, 1), values(wide, 2), values(DType.FLOAT32, 3)]

    def between(chosen, a, b):
        return select(chosen, op("gt", a, const(1, wide)), op("gt", b, const(2, DType.FLOAT32)))

    def literal(chosen, a, b):
        mask = op("and", chosen, op("gt", a, const(1, wide)))
        return select(mask, const(True, DType.BOOL), op("gt", b, const(2, DType.FLOAT32)))

    for name, compute in (("between", between), ("literal", literal)):
        made = pointwise(name, SIZE, compute, DType.BOOL, wide, DType.FLOAT32)
        for kernel in build([(made, schedule) for schedule in SCHEDULES]):
            check(kernel, inputs, rtol=0, atol=0)


def test_whole_number_division_by_zero_in_a_lane_not_taken_does_not_trap(build):
    def compute(a, b):
        zero = op("sub", a, a)
        return select(op("eq", b, zero), zero, op("truncdiv", a, b))

    made = pointwise("guarded", SIZE, compute, DType.INT32, DType.INT32)
    named = {"in0": torch.arange(SIZE, dtype=torch.int32) - 40, "in1": torch.arange(SIZE, dtype=torch.int32) % 3}
    a, b = named["in0"], named["in1"]
    wanted = torch.where(b == 0, 0, torch.div(a, b.clamp(min=1), rounding_mode="trunc"))
    for kernel in build([(made, schedule) for schedule in SCHEDULES]):
        assert torch.equal(run(kernel, [named[buffer.name] for buffer in made.inputs])[0], wanted)
