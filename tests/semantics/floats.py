"""Floating point: NaN, infinities, the sign of zero, in each dtype; extremes, limits, sorting, softmax, activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.semantics.case import Case, case, group

nan, inf = float("nan"), float("inf")
SPECIAL = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 1e-40, -1e-40, 6e4, 88.0, -104.0]
NORMAL = [number for number in SPECIAL if abs(number) != 1e-40]


def special(dtype: torch.dtype = torch.float32) -> Tensor:
    """Special numbers, more than a vector register holds."""
    return torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)


def pairs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Every special number against every other, without denormal ones: eager's `fmod` by them is NaN in its vectors."""
    numbers = torch.tensor(NORMAL, dtype=torch.float64).to(dtype)
    return numbers[:, None].expand(-1, len(numbers)).contiguous(), numbers[None].expand(len(numbers), -1).contiguous()


def rows(dtype: torch.dtype = torch.float32) -> tuple[Tensor]:
    """Rows with a NaN first, last, twice, none; infinities of both signs; zeros of both signs in both orders; ties."""
    table = [
        [nan, 1.0, 2.0, 3.0, -4.0],
        [1.0, 2.0, 3.0, -4.0, nan],
        [0.0, nan, 5.0, nan, 1.0],
        [inf, 1.0, -inf, 2.0, 0.0],
        [-inf, -inf, -inf, -inf, -inf],
        [inf, inf, 1.0, 2.0, inf],
        [-0.0, 0.0, -0.0, -1.0, -2.0],
        [0.0, -0.0, 0.0, 3.0, 2.0],
        [-0.0, -0.0, -0.0, -0.0, -0.0],
        [0.0, -0.0, 0.0, -0.0, 0.0],
        [2.0, 2.0, 1.0, 1.0, 2.0],
    ]
    return (torch.tensor(table, dtype=dtype),)


EXTREMES = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "max of two": torch.max,
    "min of two": torch.min,
    "clamp min tensor": lambda a, b: torch.clamp(a, min=b),
    "clamp max tensor": lambda a, b: torch.clamp(a, max=b),
    "clamp both tensors": lambda a, b: torch.clamp(a, b, b.flip(0)),
    "where": lambda a, b: torch.where(a > b, a, b),
    "copysign": torch.copysign,
    "heaviside": torch.heaviside,
    "nextafter": lambda a, b: torch.nextafter(a.float(), b.float()),
}
_COMPARED = "eq ne lt le gt ge logical_and logical_or logical_xor"
_EXACT = (
    "abs neg sign sgn signbit relu floor ceil round trunc frac reciprocal sqrt square isnan isinf isfinite isposinf "
    "isneginf logical_not nan_to_num positive"
)
_SMOOTH = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh asinh acosh atanh erf erfc rsqrt logit "
    "sinc deg2rad rad2deg"
)
COMPARISONS = {name: getattr(torch, name) for name in _COMPARED.split()}
ARITHMETIC = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "xlogy of zero": lambda a, b: torch.xlogy(torch.zeros_like(a), b),
    "a - a": lambda a, b: a - a,
    "a - a + b": lambda a, b: a - a + b,
    "a / a": lambda a, b: a / a,
    "a * 0": lambda a, b: a * 0,
    "a * 0 + b": lambda a, b: a * 0 + b,
    "a + 0": lambda a, b: a + 0,
    "a - 0": lambda a, b: a - 0,
    "a + 0.0": lambda a, b: a + 0.0,
    "a + -0.0": lambda a, b: a + -0.0,
    "0 - a": lambda a, b: 0 - a,
    "-a": lambda a, b: -a,
    "a * 1": lambda a, b: a * 1,
    "a * -1": lambda a, b: a * -1,
    "a / 1": lambda a, b: a / 1,
    "a ** 0": lambda a, b: a**0,
    "a ** 1": lambda a, b: a**1,
    "a ** 2": lambda a, b: a**2,
    "a ** 3": lambda a, b: a**3,
    "a ** -1": lambda a, b: a**-1,
    "a ** .5": lambda a, b: a**0.5,
    "(a - inf) + inf": lambda a, b: (a - inf) + inf,
    "zeros times": lambda a, b: torch.zeros_like(a) * b,
    "full of nan times 0": lambda a, b: torch.full_like(a, nan) * 0 + b,
    "(a + b) - b": lambda a, b: (a + b) - b,
    "x != x": lambda a, b: a != a,
}
UNARY = {name: getattr(torch, name) for name in _EXACT.split()}
LIMITS = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "clamp 0 inf": lambda x: x.clamp(0, inf),
    "clamp min 0": lambda x: x.clamp(min=0),
    "clamp min 0.0": lambda x: x.clamp_min(0.0),
    "clamp min -0.0": lambda x: x.clamp_min(-0.0),
    "clamp max 0": lambda x: x.clamp(max=0),
    "clamp max -0.0": lambda x: x.clamp(max=-0.0),
    "clamp crossed": lambda x: x.clamp(2, -2),
    "clamp nan": lambda x: x.clamp(min=nan),
    "clamp max nan": lambda x: x.clamp(-1.0, nan),
    "clamp min tensor": lambda x: x.clamp(min=torch.zeros(())),
    "hardtanh": F.hardtanh,
    "hardtanh crossed": lambda x: F.hardtanh(x, -0.0, 0.0),
    "threshold": lambda x: F.threshold(x, 0.0, -0.0),
    "leaky_relu 0": lambda x: F.leaky_relu(x, 0.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.5),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.5])),
    "hardshrink": F.hardshrink,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "round to 2": lambda x: torch.round(x, decimals=2),
    "round to -1": lambda x: torch.round(x, decimals=-1),
    "max with 0": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "min with 0": lambda x: torch.minimum(torch.zeros_like(x), x),
    "zero, then relu": lambda x: torch.relu(x * 0.0),
    "nan_to_num": lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0),
    "masked_fill": lambda x: x.masked_fill(x.isnan(), -0.0),
}
SMOOTH = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "softplus": F.softplus,
    "mish": F.mish,
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 2.0),
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    **{name: getattr(torch, name) for name in _SMOOTH.split()},
    "x ** 2.5": lambda x: x**2.5,
    "2 ** x": lambda x: 2.0**x,
    "0 ** x": lambda x: 0.0**x,
    "(-1) ** x": lambda x: (-1.0) ** x,
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(0)),
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "atan2": lambda x: torch.atan2(x, x.flip(0)),
    "xlogy": lambda x: torch.xlogy(x, x.flip(0)),
    "pow": lambda x: torch.pow(x, x.flip(0)),
}
REDUCED = {
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "amax of columns": lambda x: x.amax(0),
    "amin of columns": lambda x: x.amin(0),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(1),
    "max of columns": lambda x: x.max(0),
    "max of all": lambda x: x[3:].max(),
    "min of all": lambda x: x[3:].min(),
    "max of all with nan": lambda x: x.max(),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
    "argmax of columns": lambda x: x.argmax(0),
    "argmin of all": lambda x: x.argmin(),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "cummax": lambda x: torch.cummax(x, 1),
    "cummin": lambda x: torch.cummin(x, 1),
    "sort": lambda x: torch.sort(x, dim=1, stable=True),
    "sort down": lambda x: torch.sort(x, dim=1, descending=True, stable=True),
    "topk": lambda x: torch.topk(x, 3, dim=1),
    "kthvalue": lambda x: torch.kthvalue(x, 2, dim=1).values,
    "median": lambda x: torch.median(x, dim=1).values,
    "nanmedian": lambda x: torch.nanmedian(x, dim=1).values,
    "mode": lambda x: torch.mode(x[5:], dim=1).values,
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(1),
    "sum": lambda x: x.sum(1),
    "nansum": lambda x: x.nansum(1),
    "mean": lambda x: x.mean(1),
    "nanmean": lambda x: x.nanmean(1),
    "prod": lambda x: x.prod(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "norm": lambda x: x.norm(dim=1),
    "norm inf": lambda x: torch.linalg.vector_norm(x, inf, dim=1),
    "norm -inf": lambda x: torch.linalg.vector_norm(x, -inf, dim=1),
    "norm 0": lambda x: torch.linalg.vector_norm(x, 0, dim=1),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "count_nonzero": lambda x: torch.count_nonzero(x, dim=1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "softmax of columns": lambda x: torch.softmax(x, 0),
    "softmin": lambda x: F.softmin(x, 1),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1, correction=0),
    "relu of max": lambda x: torch.relu(x.amax(1)),
    "sum of negative zeros": lambda x: (x[8:9] * 1).sum(1),
    "mean of negative zeros": lambda x: x[8:9].mean(1),
    "sum of one": lambda x: x[:, :1].sum(1),
    "amax of one": lambda x: x[:, :1].amax(1),
}
# Sums of which every part is exact, so that no order of them rounds.
EXACT = ("any", "all", "max", "min", "arg", "cumm", "sort", "topk", "kth", "medi", "nanmed", "mode", "count", "amax")
# Of these, the sign of a zero depends in eager on rounding, or on whether an element is at the end of memory.
UNSIGNED = {
    "softshrink": F.softshrink,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "group_norm": lambda x: F.group_norm(x[:, :, None], 1),
    "addcmul": lambda x: torch.addcmul(x, x, x.flip(0), value=2),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.flip(0), value=0.5),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.25),
    "fmax": lambda x: torch.fmax(x, x.flip(0)),
    "fmin": lambda x: torch.fmin(x, x.flip(1)),
}
SOFTMAX = {
    "rows of -inf": lambda x: torch.softmax(x, -1),
    "log of rows of -inf": lambda x: torch.log_softmax(x, -1),
    "masked": lambda x: torch.softmax(x.masked_fill(x < 0, -inf), -1),
    "attention": lambda x: F.scaled_dot_product_attention(
        x[None], x[None].nan_to_num(0, 1, 1), x[None].nan_to_num(0, 1, 1), attn_mask=torch.zeros(11, 11) != 0
    ),
    "logsumexp of -inf": lambda x: torch.logsumexp(x, -1),
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(11, dtype=torch.long), reduction="none"),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
NO_HALF = {"nextafter", "hypot", "mode", "topk", "kthvalue", "logcumsumexp"}


def _for(dtype: torch.dtype, functions: dict) -> dict:
    """`functions` that eager has for `dtype`; those that never round to a result of another type."""
    return {name: function for name, function in functions.items() if not (dtype.itemsize == 2 and name in NO_HALF)}


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for name, dtype in DTYPES.items():

        def two(dtype: torch.dtype = dtype) -> tuple[Tensor, Tensor]:
            return pairs(dtype)

        def one(dtype: torch.dtype = dtype) -> tuple[Tensor]:
            return (special(dtype),)

        def table(dtype: torch.dtype = dtype) -> tuple[Tensor]:
            return rows(dtype)

        exact = {key: function for key, function in REDUCED.items() if key.startswith(EXACT)}
        rounding = {key: function for key, function in REDUCED.items() if key not in exact}
        wide = dtype.itemsize > 2
        found |= {
            f"extremes, {name}": group(two, _for(dtype, EXTREMES)),
            f"comparisons, {name}": group(two, COMPARISONS),
            f"arithmetic, {name}": group(two, ARITHMETIC, exact=wide, overrides={} if wide else EMULATED),
            f"unary, {name}": group(one, UNARY),
            f"limits, {name}": group(one, _limits(dtype), exact=wide, overrides={} if wide else EMULATED),
            f"smooth, {name}": group(one, _for(dtype, SMOOTH), exact=False),
            f"extremes of rows, {name}": group(table, _for(dtype, exact)),
            f"without signs, {name}": group(table, UNSIGNED, exact=False, signed_zeros=False),
            f"sums of rows, {name}": group(table, _for(dtype, rounding), exact=False),
        }
    found["softmax of -inf"] = group(rows, SOFTMAX, exact=False)
    for key, function in {**LIMITS, **REDUCED, **ARITHMETIC}.items():
        if key in ALONE:
            inputs = rows if key in REDUCED else (lambda: (special(),)) if key in LIMITS else pairs
            found[f"alone: {key}"] = case(function, inputs)
    found["alone: 1 / relu(-0.0)"] = case(lambda x: 1 / torch.relu(x * -0.0), lambda: (special(),))
    return found


EMULATED = {"fusion.emulate_precision_casts": True}
ALONE = ("relu", "clamp min 0", "clamp crossed", "amax", "amin", "argmax", "a * 0", "a * 0 + b", "a - a", "a + 0")


def _limits(dtype: torch.dtype) -> dict:
    """Tensor limits in the dtype of the argument."""
    prelu = {"prelu": lambda x: F.prelu(x, torch.tensor([0.5], dtype=dtype))}
    return {**LIMITS, **prelu}


CASES = _cases()
