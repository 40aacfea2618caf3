"""Cases for every operator, conversion and combine, on each type it is defined on; the values expected are torch's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, Expr, cast, load, op, reduce, var
from stages.ir.index import add, bounded, linearize, mul, variables
from stages.ir.kernel import Kernel, Store
from stages.ir.ops import COMBINES, OPS, reduce_dtype, result_dtype
from tests.codegen_triton.checking import Case

COUNT = 37

# What each operator is in torch, where its name is another.
REFERENCE: dict[str, Callable[..., Tensor]] = {
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "mod": torch.remainder,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    # C's; torch's on the CPU makes NaN of some denormal divisors.
    "fmod": lambda a, b: torch.from_numpy(np.fmod(a.numpy(), b.numpy())),
    # IEEE's; torch's on the CPU can be one unit off.
    "sqrt": lambda a: torch.from_numpy(np.sqrt(a.numpy())),
    "bitand": torch.bitwise_and,
    "bitor": torch.bitwise_or,
    "bitxor": torch.bitwise_xor,
    "bitnot": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "xor": torch.logical_xor,
    "not": torch.logical_not,
}
# Operators that torch evaluates exactly as defined; the others are compared with float64, rounded once.
EXACT = frozenset(OPS) - frozenset(
    {"pow", "atan2", "hypot", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos"}
    | {"tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc"}
)
# CUDA's mathematical functions are documented to be off by at most 4 units, `pow` by 8.
ULPS = {"pow": 8, "sqrt": 0}


def sample(dtype: DType, seed: int, count: int = COUNT) -> Tensor:
    """Values of `dtype` with its special ones among them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is DType.BOOL:
        return torch.rand(count, generator=generator) < 0.5
    if not dtype.is_float:
        low, high = (0, 256) if dtype is DType.UINT8 else (-120, 120)
        return torch.randint(low, high, (count,), generator=generator).to(dtype.torch)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, float("inf"), float("-inf"), float("nan"), 1e-40, 1e30, -7.0]
    values = torch.randn(count, generator=generator, dtype=torch.float64) * 3
    values[torch.randperm(count, generator=generator)[: len(special)]] = torch.tensor(special, dtype=torch.float64)
    return values.to(dtype.torch)


def legal(name: str) -> list[DType]:
    """The types `name` takes."""
    found = []
    for dtype in DType:
        try:
            result_dtype(name, (dtype,) * OPS[name].arity)
        except TypeError:
            continue
        found.append(dtype)
    return found


def elementwise(
    inputs: list[tuple[DType, Tensor]], result: Callable[..., Expr], expected: Tensor, ulps: int = 0
) -> Case:
    """One output over one flat axis; `result` takes the loaded inputs."""
    axis = Axis("i0", expected.numel())
    buffers = [Buffer(f"in{n}", dtype, tensor.numel()) for n, (dtype, tensor) in enumerate(inputs)]
    value = result(*(load(buffer, var(axis)) for buffer in buffers))
    out = Buffer("out0", value.dtype, axis.extent)
    kernel = Kernel("elementwise", (axis,), (), (Store(out, var(axis), value),))
    return Case(kernel, tuple(tensor for _, tensor in inputs), (expected,), ulps)


def operator_case(name: str, dtype: DType) -> Case:
    operands = [sample(dtype, seed) for seed in range(OPS[name].arity)]
    if name in ("floordiv", "mod", "truncdiv", "fmod") and not dtype.is_float:
        operands[1] = torch.where(operands[1] == 0, torch.ones_like(operands[1]), operands[1])
    if name in ("shl", "shr"):
        operands[1] = operands[1].abs() % 7
    if name == "bounded":
        return bounded_case()
    function = REFERENCE.get(name) or getattr(torch, name)
    if name in EXACT:
        expected, ulps = function(*operands), 0
    else:
        expected, ulps = function(*(value.double() for value in operands)).to(dtype.torch), ULPS.get(name, 4)
    return elementwise([(dtype, value) for value in operands], lambda *values: op(name, *values), expected, ulps)


def bounded_case() -> Case:
    """Rows of a table, some counted from the end."""
    rows, width = 7, 5
    table = torch.arange(rows * width, dtype=torch.float32)
    chosen = torch.tensor([3, -1, 0, 6, -7, 2])
    i, j = Axis("i0", chosen.numel()), Axis("i1", width)
    index = bounded(load(Buffer("in0", DType.INT64, chosen.numel()), var(i)), rows)
    value = load(Buffer("in1", DType.FLOAT32, table.numel()), add(mul(index, width), var(j)))
    out = Buffer("out0", DType.FLOAT32, chosen.numel() * width)
    kernel = Kernel("embedding", (i, j), (), (Store(out, linearize(variables((i, j)), (width, 1)), value),))
    return Case(kernel, (chosen, table), (table.view(rows, width)[chosen].flatten(),))


def cast_case(old: DType, new: DType) -> Case:
    values = sample(old, 3)
    if old.is_float and new is not DType.BOOL and not new.is_float:
        # What a number out of range becomes is the machine's choice.
        values = torch.where(values.isfinite() & (values.abs() < 100), values, torch.ones_like(values)).to(old.torch)
        values = values.abs() if new is DType.UINT8 else values
    if old in (DType.FLOAT16, DType.BFLOAT16) and new is old:
        return elementwise([(old, values)], lambda value: value, values)
    return elementwise([(old, values)], lambda value: cast(value, new), values.to(new.torch))


def rounding_case(dtype: DType) -> Case:
    """float32 numbers halfway between two half numbers, and next to that: to the nearest, ties to even."""
    step = {DType.BFLOAT16: 2.0**-7, DType.FLOAT16: 2.0**-10}[dtype]
    ties = 1 + step * (torch.arange(16, dtype=torch.float32) + 0.5)
    nearby = torch.cat([ties, torch.nextafter(ties, torch.tensor(0.0)), torch.nextafter(ties, torch.tensor(9.0))])
    values = torch.cat([nearby, -nearby, torch.tensor([3.3895314e38, 65519.0, 65520.0, 1e-41, 6e-8, 2e-8])])
    return elementwise([(DType.FLOAT32, values)], lambda value: cast(value, dtype), values.to(dtype.torch))


def combine_case(combine: str, dtype: DType) -> Case:
    """Rows with ties, NaN and infinities in them."""
    rows, size = 5, 13
    values = sample(dtype, 5, rows * size).view(rows, size)
    if dtype.is_float and combine in ("sum", "prod"):
        values = torch.where(values.isfinite() & (values.abs() < 1e3), values.abs(), torch.ones_like(values))
        values[1, 4], values[2, 3], values[2, 7] = float("nan"), float("inf"), float("-inf")
    if dtype.is_float and combine not in ("sum", "prod"):
        values[0] = torch.where(values[0].isnan(), torch.ones_like(values[0]), values[0])
        values[3] = float("-inf") if "max" in combine else float("inf")
    if combine == "prod":
        values[0], values[4] = values[0].sign(), torch.ones_like(values[4])
    if combine in ("argmax", "argmin"):
        values[4, 2:] = values[4, 2]
    i, r = Axis("i0", rows), Axis("r0", size)
    body = load(Buffer("in0", dtype, rows * size), linearize(variables((i, r)), (size, 1)))
    value = reduce(combine, (r,), body)
    out = Buffer("out0", value.dtype, rows)
    kernel = Kernel(combine, (i,), (r,), (Store(out, var(i), value),))
    expected = reduced(combine, values).to(value.dtype.torch)
    # The order of a sum is free: of thirteen positive numbers each addition may be half a unit off.
    return Case(kernel, (values.flatten(),), (expected,), 8 if dtype.is_float and combine in ("sum", "prod") else 0)


def reduced(combine: str, values: Tensor) -> Tensor:
    if combine in ("sum", "prod"):
        wide = values.double() if values.dtype.is_floating_point else values
        return getattr(torch, combine)(wide, 1, dtype=wide.dtype)
    if combine in ("max", "min"):
        return getattr(torch, f"a{combine}")(values, 1)
    return getattr(torch, combine)(values, 1)


def combine_types(combine: str) -> list[DType]:
    found = []
    for dtype in DType:
        try:
            reduce_dtype(combine, dtype)
        except TypeError:
            continue
        found.append(dtype)
    return found


CASES: dict[str, Callable[[], Case]] = {
    **{f"op-{name}-{dtype}": (lambda n=name, d=dtype: operator_case(n, d)) for name in OPS for dtype in legal(name)},
    **{f"cast-{old}-{new}": (lambda o=old, n=new: cast_case(o, n)) for old in DType for new in DType},
    **{f"round-{dtype}": (lambda d=dtype: rounding_case(d)) for dtype in (DType.FLOAT16, DType.BFLOAT16)},
    **{
        f"reduce-{name}-{dtype}": (lambda n=name, d=dtype: combine_case(n, d))
        for name in sorted(COMBINES)
        for dtype in combine_types(name)
    },
}
