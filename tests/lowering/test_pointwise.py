"""Elementwise operators against eager: values, dtypes, NaN, infinities, signs, for every dtype that eager takes."""

import pytest
import torch
import torch.nn.functional as F

from stages.fusion.lowering import Kind, kind_of, why_not
from tests.lowering.harness import calls, check, check_all, one_by_one, together, trace
from tests.lowering.samples import ALL, FLOATS, INTEGERS, line, pair, randn

OF_ONE = (
    "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc reciprocal sigmoid neg abs sign square floor ceil trunc round frac isnan isinf isfinite isposinf "
    "isneginf signbit logical_not bitwise_not nan_to_num logit sinc relu deg2rad"
)
ONE = {name: getattr(torch, name) for name in OF_ONE.split()} | {
    "round_decimals": lambda x: x.round(decimals=1),
    "round_tens": lambda x: x.round(decimals=-1),
    "nan_to_numbers": lambda x: x.nan_to_num(1.0, 2.0, -3.0),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "softplus_scaled": lambda x: F.softplus(x, 2, 5),
    "mish": F.mish,
    "elu": lambda x: F.elu(x, 0.5),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.5),
    "leaky_relu": F.leaky_relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.3),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "logsigmoid": F.logsigmoid,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "logit_of_limits": lambda x: x.logit(0.1),
    "logit_of_limits_that_cross": lambda x: x.logit(0.6),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp_float": lambda x: x.clamp(-0.5, 2.5),
    "clamp_min": lambda x: x.clamp(min=1),
    "clamp_max": lambda x: x.clamp(max=1),
    "add": lambda x: x + 1,
    "add_float": lambda x: x + 0.1,
    "add_alpha": lambda x: torch.add(x, 3, alpha=2),
    "rsub": lambda x: 1 - x,
    "mul": lambda x: x * 3,
    "mul_true": lambda x: x * True,
    "div": lambda x: x / 3,
    "rdiv": lambda x: 1 / x,
    "floor_divide": lambda x: x // 3,
    "floor_divide_negative": lambda x: x // -3,
    "floor_divide_float": lambda x: x // 0.7,
    "trunc_divide": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "remainder": lambda x: x % 3,
    "remainder_negative": lambda x: x % -3,
    "remainder_one": lambda x: x % -1,
    "remainder_float": lambda x: x % 0.7,
    "fmod": lambda x: torch.fmod(x, 3),
    "fmod_negative": lambda x: torch.fmod(x, -3),
    "compare_half_way": lambda x: x > 0.1,
    "equal": lambda x: x == 0,
    "less_large": lambda x: x < 300,
    "and_scalar": lambda x: x & 6,
    "shift_left": lambda x: torch.bitwise_left_shift(x, 3),
    "shift_right": lambda x: torch.bitwise_right_shift(x, 1),
    "masked_fill": lambda x: x.masked_fill(x > 0, 2),
    "where_scalar": lambda x: torch.where(x > 0, x, 0.5),
    "where_scalars": lambda x: torch.where(x > 0, 1, 0.5),
    "to_int": lambda x: x.nan_to_num(0, 1, -1).to(torch.int32),
    "to_byte": lambda x: x.nan_to_num(0, 1, 1).abs().clamp(0, 100).to(torch.uint8),
    "to_bool": lambda x: x.to(torch.bool),
    "to_half": lambda x: x.to(torch.float16),
    "to_bfloat16": lambda x: x.to(torch.bfloat16),
    "to_double": lambda x: x.to(torch.float64),
    **{f"pow_{e}": lambda x, e=e: x**e for e in (0, 1, 2, 3, 5, -1, -2, 1.7, 2.0)},
    # Eager's float16 on the CPU calls pow() where all its other types take square roots: they differ at -inf only.
    **{f"pow_{e}": lambda x, e=e: x.clamp(min=-100) ** e for e in (0.5, -0.5)},
    "pow_of": lambda x: 2 ** x.to(torch.float32),
}

OF_TWO = (
    "add sub mul div maximum minimum fmax fmin atan2 copysign eq ne lt le gt ge logical_and logical_or logical_xor "
    "bitwise_and bitwise_or bitwise_xor hypot logaddexp xlogy remainder fmod floor_divide pow heaviside"
)
TWO = {name: getattr(torch, name) for name in OF_TWO.split()} | {
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "clamp": lambda a, b: torch.clamp(a, b, b + 1),
    "where": lambda a, b: torch.where(a > b, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=2),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=0.5),
    "lerp": lambda a, b: torch.lerp(a, b, 0.7),
    "lerp_near": lambda a, b: torch.lerp(a, b, 0.2),
    "prelu": lambda a, b: torch._prelu_kernel(a, b),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 3),
    "copy": lambda a, b: torch.ops.aten.copy(a + b, b),
}


def accepted(function, *tensors) -> bool:
    """Whether eager takes these types at all."""
    try:
        function(*tensors)
    except (RuntimeError, TypeError, ValueError):
        return False
    return True


def test_nextafter_of_a_half_type_is_refused():
    for dtype in (torch.bfloat16, torch.float16):
        (node,) = calls(trace(torch.nextafter, [randn(4, dtype=dtype), randn(4, dtype=dtype)]))
        assert "half" in why_not(node)


def divides_whole_numbers(name: str, dtype: torch.dtype) -> bool:
    return name in DIVISIONS and not dtype.is_floating_point


# By a tensor of whole numbers, which may hold 0 (or be a negative power).
DIVISIONS = ("remainder", "fmod", "floor_divide", "div_trunc", "pow")


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_one_operand(dtype):
    x = line(dtype)
    functions = {name: function for name, function in ONE.items() if accepted(function, x)}
    assert len(functions) > 50
    check_all(functions, [x])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_two_operands(dtype):
    a, b = pair(dtype)
    functions = {
        name: function
        for name, function in TWO.items()
        if not divides_whole_numbers(name, dtype) and accepted(function, a, b)
    }
    assert len(functions) > 10
    check_all(functions, [a, b], cancels=("lerp", "lerp_near"))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_whole_numbers_divided_by_a_tensor_have_no_kernel(dtype):
    x = torch.tensor([1, 2, 3], dtype=dtype)
    for name in DIVISIONS:
        (node,) = calls(trace(TWO[name], [x, x]))
        assert kind_of(node) is Kind.EXTERN
        assert "whole numbers" in why_not(node)


PROMOTIONS = [
    (torch.float32, torch.float64),
    (torch.bfloat16, torch.float16),
    (torch.bfloat16, torch.float32),
    (torch.int64, torch.float16),
    (torch.uint8, torch.int8),
    (torch.bool, torch.int32),
    (torch.int32, torch.int64),
    (torch.bool, torch.float32),
]


@pytest.mark.parametrize("dtypes", PROMOTIONS, ids=str)
@pytest.mark.parametrize("function", [torch.add, torch.mul, torch.div, torch.eq, torch.lt, torch.maximum])
def test_mixed_types_promote_as_torch_has_it(function, dtypes):
    for left, right in (dtypes, dtypes[::-1]):
        inputs = [randn(3, 4, dtype=left), randn(4, dtype=right, seed=1)]
        check_all(
            {
                "tensors": function,
                "0-dim right": lambda a, b: function(a, b[0]),
                "0-dim left": lambda a, b: function(a[0, 0], b),
                "0-dim both": lambda a, b: function(a[0, 0], b[0]),
            },
            inputs,
        )


def test_python_scalars_and_zero_dim_tensors_promote_only_across_categories():
    def function(x, i, s):
        return x + 1, x * 2.5, i + 2.5, i + True, x + s, i + s, i * s.long(), (i > 1) + 1, torch.where(i > 1, i, 0.5)

    inputs = [randn(4, dtype=torch.bfloat16), randn(4, dtype=torch.int32), torch.tensor(1.25, dtype=torch.float64)]
    check(one_by_one(function, inputs), function, inputs)


def test_a_scalar_is_rounded_to_a_half_type_where_eager_does_it():
    x = torch.tensor([0.1, 0.10009765625, 0.3], dtype=torch.bfloat16)
    for function in (lambda x: x == 0.1, lambda x: x < 0.1, lambda x: x * 0.1, lambda x: torch.maximum(x, x * 0.3)):
        check(one_by_one(function, [x]), function, [x])


def test_signs_of_zero_survive():
    x = torch.tensor([0.0, -0.0, 1.0, -1.0])

    def function(x):
        results = (-x, x * -1, x.abs(), x.trunc(), x + 0.0, torch.neg(x))
        return [torch.copysign(torch.ones_like(x), result) for result in results]

    for ours, eager in zip(one_by_one(function, [x]), function(x), strict=True):
        assert ours.tolist() == eager.tolist()


def test_whole_numbers_wrap():
    for dtype in INTEGERS:
        x = torch.tensor([torch.iinfo(dtype).max, torch.iinfo(dtype).min, 3], dtype=dtype)
        for function in (lambda x: x + 1, lambda x: x * 3, lambda x: x - 4, lambda x: -x, lambda x: x**3):
            check(one_by_one(function, [x]), function, [x])


def test_layouts_are_read_and_written_by_their_strides():
    whole = randn(2, 6, 4, 8)
    tensors = [
        whole[:, ::2],
        whole.transpose(1, 3)[:, :, :, :3].transpose(1, 3),
        whole[:, :3].contiguous(memory_format=torch.channels_last),
        whole[:1, :3].expand(2, 3, 4, 8),
        whole[:, :1].expand(2, 3, 4, 8),
        torch.tensor(0.5),
    ]

    def function(a, b):
        return a * b + a.sigmoid()

    for a in tensors:
        for b in tensors:
            check(together(function, [a, b])[0], function, [a, b])


def test_a_chain_is_one_expression_and_half_types_round_only_where_asked():
    def function(x):
        return ((x * 1.01 + 0.3).tanh() - 0.2) * 3.3

    for dtype in FLOATS:
        x = randn(64, dtype=dtype)
        (loose,), _ = together(function, [x])
        check([loose], function, [x])
    x = randn(256, dtype=torch.bfloat16)
    (strict,), _ = together(function, [x], emulate_precision_casts=True)
    assert torch.equal(strict, one_by_one(function, [x])[0])
    assert not torch.equal(strict, together(function, [x])[0][0])


def test_in_double_the_kernel_computes_what_the_formula_says():
    x = randn(64, dtype=torch.float32)
    functions = [F.gelu, F.silu, F.mish, F.softplus, torch.tanh, torch.sigmoid, lambda x: x.exp().log1p()]
    for function in functions:
        (ours,), _ = together(function, [x], in_double=True)
        assert torch.equal(ours, function(x.double()).float())


def test_dropout_in_evaluation_is_the_identity():
    def function(x):
        return torch.native_dropout(x, 0.5, False)[0]

    check(one_by_one(function, [line(torch.float32)]), function, [line(torch.float32)])


def test_random_and_complex_have_no_kernel():
    x = randn(4)
    (node,) = calls(trace(lambda x: torch.native_dropout(x, 0.5, True)[0], [x]))[:1]
    assert "random" in why_not(node)
    node = calls(trace(lambda x: torch.view_as_complex(x.view(2, 2)) + 1, [x]))[-1]
    assert kind_of(node) is Kind.EXTERN
    assert "complex64" in why_not(node)
