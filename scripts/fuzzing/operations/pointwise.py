"""Elementwise steps: arithmetic, comparisons, casts, selections, creations. Data first, then how each is drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from scripts.fuzzing.case import Step
from scripts.fuzzing.draw import FLOATS, INTEGERS, Draw
from scripts.fuzzing.operations.registry import proposes

_EXACT_UNARY = """
-{0} {0}.abs() torch.relu({0}) torch.sign({0}) {0}.floor() {0}.ceil() {0}.trunc() {0}.round() torch.frac({0})
torch.sgn({0})
"""
_ROUNDING_UNARY = """
torch.exp({0}) torch.tanh({0}) torch.sigmoid({0}) F.gelu({0}) F.silu({0}) torch.sqrt({0}) torch.rsqrt({0})
torch.log({0}) torch.log1p({0}) torch.expm1({0}) torch.sin({0}) torch.cos({0}) torch.erf({0}) torch.square({0})
torch.reciprocal({0}) F.softplus({0}) F.hardswish({0}) F.hardsigmoid({0}) F.elu({0}) F.leaky_relu({0},0.1)
F.mish({0}) F.logsigmoid({0}) torch.exp2({0}) torch.log2({0}) torch.atan({0}) torch.sinh({0})
F.gelu({0},approximate='tanh') F.hardtanh({0}) F.relu6({0}) torch.tan({0}) torch.asinh({0}) torch.erfc({0})
torch.cosh({0}) torch.log10({0}) torch.selu({0}) F.softsign({0}) F.tanhshrink({0}) torch.acos({0}) torch.atanh({0})
torch.sinc({0}) torch.logit({0},0.1) torch.deg2rad({0})
"""
_CLASSIFYING = "torch.isnan({0}) torch.isinf({0}) torch.isfinite({0}) torch.signbit({0}) torch.logical_not({0})"

EXACT_UNARY, ROUNDING_UNARY, CLASSIFYING = _EXACT_UNARY.split(), _ROUNDING_UNARY.split(), _CLASSIFYING.split()
INTEGER_UNARY = ["-{0}", "{0}.abs()", "~{0}", "torch.sign({0})", "torch.relu({0})", "{0}.square()"]
ROUNDING_BINARY = [
    *("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} + {1}", "{0} * {1}", "{0} / {1}"),
    *("torch.atan2({0}, {1})", "torch.hypot({0}, {1})", "torch.logaddexp2({0}, {1})"),
    *("torch.lerp({0}, {1}, 0.3)", "torch.logaddexp({0}, {1})", "torch.xlogy({0}, {1})"),
    *("torch.add({0}, {1}, alpha=2)", "torch.sub({0}, {1}, alpha=0.5)", "torch.rsub({0}, {1})"),
]
EXACT_BINARY = [
    *("torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "torch.fmax({0}, {1})", "torch.fmin({0}, {1})"),
    *("torch.copysign({0}, {1})", "torch.heaviside({0}, {1})", "torch.remainder({0}, {1})", "torch.fmod({0}, {1})"),
    *("torch.div({0}, {1}, rounding_mode='floor')", "torch.div({0}, {1}, rounding_mode='trunc')", "{0} // {1}"),
]
INTEGER_BINARY = [
    *("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} // {1}", "{0} % {1}"),
    *("torch.div({0}, {1}, rounding_mode='trunc')", "torch.fmod({0}, {1})", "torch.maximum({0}, {1})"),
    *("torch.minimum({0}, {1})", "torch.gcd({0}, {1})"),
]
COMPARISONS = ["{0} > {1}", "{0} < {1}", "{0} >= {1}", "{0} <= {1}", "{0} == {1}", "{0} != {1}"]
LOGICAL = ["torch.logical_and({0}, {1})", "torch.logical_or({0}, {1})", "torch.logical_xor({0}, {1})"]
TERNARY = [
    *("torch.addcmul({0}, {1}, {2})", "torch.addcdiv({0}, {1}, {2}, value=0.5)", "torch.lerp({0}, {1}, {2})"),
    "torch.clamp({0}, {1}, {2})",
]


def is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype is not torch.bool


def is_bool(tensor: Tensor) -> bool:
    return tensor.dtype is torch.bool


@proposes(14)
def unary(draw: Draw) -> Step:
    operand = draw.value()
    if is_bool(draw[operand]):
        return Step(draw.among(["~{0}", "torch.logical_not({0})"]), (operand,))
    if is_integer(draw[operand]):
        return Step(draw.among(INTEGER_UNARY), (operand,))
    exact = draw.chance(0.3)
    return Step(draw.among(EXACT_UNARY if exact else ROUNDING_UNARY), (operand,), rounds=not exact)


@proposes(2)
def classify(draw: Draw) -> Step:
    return Step(draw.among(CLASSIFYING), (draw.value(),))


@proposes(16)
def binary(draw: Draw) -> Step:
    first = draw.value()
    second = draw.partner(first, same_dtype=draw.chance(0.6))
    tensors = draw[first], draw[second]
    operands = (first, second) if draw.chance(0.5) else (second, first)
    if any(tensor.is_floating_point() for tensor in tensors):
        exact = draw.chance(0.25)
        return Step(draw.among(EXACT_BINARY if exact else ROUNDING_BINARY), operands, rounds=not exact)
    if any(map(is_integer, tensors)):
        code = draw.among(INTEGER_BINARY)
        if not draw.special and any(divides in code for divides in ("//", "%", "div", "fmod")):
            code = code.replace("{1}", "({1} | 1)") if is_integer(draw[operands[1]]) else "{0} * {1}"
        return Step(code, operands)
    return Step(draw.among(["{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} + {1}", "{0} * {1}", *LOGICAL]), operands)


@proposes(8)
def with_scalar(draw: Draw) -> Step:
    operand = draw.value()
    dtype = draw[operand].dtype
    number = draw.number(dtype)
    if dtype.is_floating_point and draw.chance(0.1):
        return Step(draw.among(["{0} % N", "{0} // N"]).replace("N", number), (operand,))
    if dtype.is_floating_point:
        code = draw.among(["{0} + N", "{0} * N", "N - {0}", "{0} / N", "N / {0}", "torch.pow({0}, P)"])
        power = draw.among(["2", "3", "0.5", "-1", "0", "1", "2.0", "-2"])
        return Step(code.replace("N", number).replace("P", power), (operand,), rounds=True)
    if dtype is torch.bool:
        return Step(draw.among(["{0} + N", "{0} * N", "{0} * 0.5"]).replace("N", number), (operand,), rounds=True)
    code = draw.among(
        ["{0} + N", "{0} * N", "N - {0}", "{0} // N", "{0} % N", "{0} & N", "{0} / N", "{0} << S", "{0} >> S"]
    )
    shift = draw.among(["0", "1", "3", "7"])
    return Step(code.replace("N", number).replace("S", shift), (operand,), rounds=True)


@proposes(3)
def clamped(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: not is_bool(tensor))
    number = draw.number(draw[operand].dtype)
    code = draw.among(
        [f"torch.clamp({{0}}, min={number})", f"torch.clamp({{0}}, max={number})", "torch.clamp({0}, -1, 2)"]
    )
    return Step(code, (operand,))


@proposes(5)
def compare(draw: Draw) -> Step:
    first = draw.value()
    if draw.chance(0.3):
        return Step(draw.among(COMPARISONS).replace("{1}", draw.number(draw[first].dtype)), (first,))
    return Step(draw.among(COMPARISONS + LOGICAL[:1]), (first, draw.partner(first)))


@proposes(5)
def select(draw: Draw) -> Step:
    first = draw.value()
    second = draw.partner(first, same_dtype=draw.chance(0.7))
    if draw.chance(0.4):
        condition = draw.value(is_bool)
        if draw.chance(0.3):
            number = draw.number(draw[first].dtype)
            return Step(f"{{1}}.masked_fill({{0}}, {number})", (condition, first))
        return Step("torch.where({0}, {1}, {2})", (condition, first, second))
    if draw.chance(0.2):
        return Step(f"torch.where({{0}} > {{1}}, {{0}}, {draw.number(draw[first].dtype)})", (first, second))
    return Step(draw.among(["torch.where({0} > {1}, {0}, {1})", "torch.where({0} == {1}, {1}, {0})"]), (first, second))


@proposes(2)
def ternary(draw: Draw) -> Step:
    first = draw.floating()
    second, third = draw.partner(first, same_dtype=True), draw.partner(first, same_dtype=True)
    return Step(draw.among(TERNARY), (first, second, third), rounds=True)


@proposes(8)
def cast(draw: Draw) -> Step:
    operand = draw.value()
    target = draw.among([*FLOATS, *INTEGERS[:4], torch.uint8, torch.bool])
    if draw[operand].is_floating_point() and not target.is_floating_point and target is not torch.bool:
        # What a float out of range becomes is not defined in C++, and eager's own answer depends on vector width.
        low, high = (0, 200) if target is torch.uint8 else (-100, 100)
        return Step(f"{{0}}.nan_to_num(1.0, 3.0, 2.0).clamp({low}, {high}).to({target})", (operand,))
    return Step(f"{{0}}.to({target})", (operand,), rounds=target.is_floating_point)


@proposes(2)
def cleaned(draw: Draw) -> Step:
    return Step(draw.among(["torch.nan_to_num({0})", "torch.nan_to_num({0}, 1.0, 2.0, 3.0)"]), (draw.floating(),))


@proposes(2)
def created(draw: Draw) -> Step:
    operand = draw.value()
    tensor = draw[operand]
    if draw.chance(0.5):
        number = draw.number(tensor.dtype)
        like = [f"torch.full_like({{0}}, {number})", "torch.zeros_like({0})", "torch.ones_like({0})"]
        return Step(draw.among(like), (operand,))
    dtype, size = draw.among([*FLOATS, *INTEGERS]), tensor.shape[-1] if tensor.ndim else 3
    code = [f"torch.arange({size}, dtype={dtype})", f"torch.full(({size},), 2, dtype={dtype})"]
    return Step(draw.among(code))
