"""Activation functions as expressions of one float operand, in the order of operations of ATen's kernels
(aten/src/ATen/native/cpu/Activation.cpp), which decides their rounding and what NaN and infinities give."""

from __future__ import annotations

import math

from stages.fusion.lowering.formulas import clamp, like, scaled
from stages.ir.dtype import DType
from stages.ir.expr import Expr, Number, cast, op, select


def relu(x: Expr) -> Expr:
    """max(x, 0); NaN stays NaN."""
    return x if x.dtype in (DType.BOOL, DType.UINT8) else op("maximum", x, like(0, x))


def sigmoid(x: Expr) -> Expr:
    one = like(1, x)
    return op("div", one, op("add", one, op("exp", op("neg", x))))


def silu(x: Expr) -> Expr:
    return op("div", x, op("add", like(1, x), op("exp", op("neg", x))))


def gelu(x: Expr, approximate: str = "none") -> Expr:
    half = op("mul", like(0.5, x), x)
    if approximate == "tanh":
        beta = math.sqrt(2) * (2 / math.sqrt(math.pi)) * 0.5
        cube = op("mul", op("mul", x, x), x)
        inner = scaled(op("add", x, scaled(cube, 0.044715)), beta)
        return op("mul", half, op("add", like(1, x), op("tanh", inner)))
    return op("mul", half, op("add", like(1, x), op("erf", scaled(x, math.sqrt(0.5)))))


def softplus(x: Expr, beta: Number = 1, threshold: Number = 20) -> Expr:
    inner = scaled(x, beta)
    soft = op("log1p", op("exp", inner))
    soft = soft if beta == 1 else op("div", soft, like(beta, x))
    return select(op("gt", inner, like(threshold, x)), x, soft)


def mish(x: Expr) -> Expr:
    return op("mul", x, op("tanh", op("log1p", op("exp", x))))


def elu(x: Expr, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Expr:
    below = scaled(op("expm1", scaled(x, input_scale)), alpha * scale)
    return select(op("le", x, like(0, x)), below, scaled(x, scale))


def selu(x: Expr) -> Expr:
    return elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def celu(x: Expr, alpha: Number = 1) -> Expr:
    return elu(x, alpha, 1, 1 / alpha)


def leaky_relu(x: Expr, negative_slope: Number = 0.01) -> Expr:
    return select(op("gt", x, like(0, x)), x, scaled(x, negative_slope))


def prelu(x: Expr, weight: Expr) -> Expr:
    return select(op("gt", x, like(0, x)), x, op("mul", weight, x))


def relu6_of(x: Expr) -> Expr:
    """x + 3, clamped to [0, 6]."""
    return clamp(op("add", x, like(3, x)), like(0, x), like(6, x))


def hardswish(x: Expr) -> Expr:
    return op("div", op("mul", x, relu6_of(x)), like(6, x))


def hardsigmoid(x: Expr) -> Expr:
    return op("div", relu6_of(x), like(6, x))


def log_sigmoid(x: Expr) -> Expr:
    """min(x, 0) - log1p(exp(-|x|))."""
    return op("sub", op("minimum", x, like(0, x)), op("log1p", op("exp", op("neg", op("abs", x)))))


def softshrink(x: Expr, lambd: Number = 0.5) -> Expr:
    """x moved towards 0 by `lambd`, 0 inside; NaN stays."""
    bound = like(lambd, x)
    low = select(op("lt", x, op("neg", bound)), op("add", x, bound), op("mul", x, like(0, x)))
    return select(op("gt", x, bound), op("sub", x, bound), low)


def hardshrink(x: Expr, lambd: Number = 0.5) -> Expr:
    inside = op("and", op("ge", x, like(-lambd, x)), op("le", x, like(lambd, x)))
    return select(inside, like(0, x), x)


def glu(x: Expr, gate: Expr) -> Expr:
    """One half of the channels times the sigmoid of the other."""
    return op("mul", x, sigmoid(gate))


def logit(x: Expr, eps: Number | None = None) -> Expr:
    """log(x / (1 - x)) of x moved into [eps, 1 - eps]; where that is empty (eps > 0.5), `eps` is asked for first."""
    if eps is not None:
        low, high = like(eps, x), like(1 - eps, x)
        x = select(op("lt", x, low), low, select(op("gt", x, high), high, x))
    return op("log", op("div", x, op("sub", like(1, x), x)))


def logaddexp(a: Expr, b: Expr) -> Expr:
    """log(exp(a) + exp(b)) from the larger one; equal infinities are their own result."""
    larger, smaller = op("maximum", a, b), op("minimum", a, b)
    sum_ = op("add", larger, op("log1p", op("exp", op("sub", smaller, larger))))
    same = op("and", op("eq", a, b), op("isinf", a))
    return select(same, a, sum_)


def xlogy(a: Expr, b: Expr) -> Expr:
    """a * log(b); 0 where a is 0, NaN where b is NaN."""
    product = op("mul", a, op("log", b))
    return select(op("isnan", b), b, select(op("eq", a, like(0, a)), like(0, a), product))


def sinc(x: Expr) -> Expr:
    angle = scaled(x, math.pi)
    return select(op("eq", x, like(0, x)), like(1, x), op("div", op("sin", angle), angle))


def heaviside(x: Expr, at_zero: Expr) -> Expr:
    """0 below 0 and of NaN, 1 above, `at_zero` at it."""
    above = cast(op("gt", x, like(0, x)), x.dtype)
    return select(op("eq", x, like(0, x)), at_zero, above)
