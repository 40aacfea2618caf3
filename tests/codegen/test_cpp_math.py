"""Accuracy of the vector mathematics in units in the last place, against float64, beside torch eager's own.

Samples are dense over all floats: one bit pattern in 2,003 (two million), so that every exponent, the subnormals, both
zeros, both infinities and NaNs are among them, and the same again within the range where a function is not constant.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stages.ir.expr import Expr, op
from stages.ir.schedule import Schedule
from tests.codegen.kernels import F32, number, pointwise, run

FUNCTIONS = [
    "exp",
    "exp2",
    "expm1",
    "tanh",
    "erf",
    "erfc",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "sqrt",
    "rsqrt",
]


def sigmoid(x: Expr) -> Expr:
    return op("div", number(1), op("add", number(1), op("exp", op("neg", x))))


def gelu(x: Expr) -> Expr:
    half = op("mul", x, number(0.5))
    return op("mul", half, op("add", number(1), op("erf", op("mul", x, number(math.sqrt(0.5))))))


def gelu_tanh(x: Expr) -> Expr:
    cube = op("mul", op("mul", x, x), x)
    inner = op("mul", number(math.sqrt(2 / math.pi)), op("add", x, op("mul", number(0.044715), cube)))
    return op("mul", op("mul", number(0.5), x), op("add", number(1), op("tanh", inner)))


def eager_gelu_tanh(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


# What is made of several operators: (expression, eager, range). Beyond it eager itself overflows or cancels.
COMPOSED = {
    "sigmoid": (sigmoid, torch.sigmoid, (-80.0, 80.0)),
    "silu": (lambda x: op("mul", x, sigmoid(x)), torch.nn.functional.silu, (-80.0, 80.0)),
    "gelu": (gelu, torch.nn.functional.gelu, (-1.0, 8.0)),
    "gelu_tanh": (gelu_tanh, eager_gelu_tanh, (-1.0, 8.0)),
}


def samples() -> Tensor:
    patterns = torch.arange(-(1 << 31), 1 << 31, 2003, dtype=torch.int64).to(torch.int32).view(torch.float32)
    near = torch.linspace(-12, 12, 400_003)
    wide = torch.linspace(-200, 200, 100_003)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0**-126, 2.0**-149, -(2.0**-149)])
    return torch.cat([patterns, near, wide, special])


def ulps(found: Tensor, exact: Tensor) -> float:
    """The largest distance of float32 `found` from float64 `exact`, in float32 units at `exact`."""
    rounded = exact.float()
    finite = torch.isfinite(rounded) & torch.isfinite(found)
    mantissa, exponent = torch.frexp(exact[finite].abs().clamp(min=2.0**-126))
    unit = torch.ldexp(torch.ones_like(mantissa), exponent - 24)
    return ((found[finite].double() - exact[finite]).abs() / unit).max().item()


@pytest.fixture(scope="module")
def compiled(build):
    size = len(samples())
    of = {name: pointwise(name, size, lambda x, n=name: op(n, x), F32) for name in FUNCTIONS}
    of |= {name: pointwise(name, size, composed[0], F32) for name, composed in COMPOSED.items()}
    return dict(zip(of, build([(kernel, Schedule(vector_width=8, unroll=2)) for kernel in of.values()]), strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_at_most_eagers(compiled, name):
    x = samples()
    exact = getattr(torch, name)(x.double())
    (found,) = run(compiled[name], [x])
    eager = getattr(torch, name)(x)
    assert ulps(found, exact) <= ulps(eager, exact)
    assert torch.equal(torch.isnan(found), torch.isnan(exact))
    assert torch.equal(torch.isinf(found), torch.isinf(exact.float()))
    number = ~torch.isnan(exact)
    assert torch.equal(torch.signbit(found)[number], torch.signbit(exact)[number])


@pytest.mark.parametrize("name", COMPOSED)
def test_error_of_activations_is_at_most_eagers(compiled, name):
    _, eager, (low, high) = COMPOSED[name]
    x = samples()
    exact, (found,), reference = eager(x.double()), run(compiled[name], [x]), eager(x)
    inside = (x >= low) & (x <= high)
    # Half a unit is what one rounding more or less, in another order of the same operations, can make.
    assert ulps(found[inside], exact[inside]) <= ulps(reference[inside], exact[inside]) + 0.5
    assert torch.equal(torch.isnan(found), torch.isnan(reference))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_value_does_not_depend_on_where_it_stands(build, compiled, name):
    scalar = pointwise(name, 301, lambda x: op(name, x), F32)
    x = torch.cat([torch.linspace(-10, 10, 296), samples()[-5:]])
    padded = torch.cat([x, torch.zeros(len(samples()) - len(x))])
    found = [run(each, [x])[0] for each in build([(scalar, Schedule()), (scalar, Schedule(vector_width=4))])]
    found.append(run(compiled[name], [padded])[0][:301])
    assert all(torch.equal(f.nan_to_num(7), found[0].nan_to_num(7)) for f in found)
