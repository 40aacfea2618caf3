"""What scalar operators compute, as expressions: operands of one compute type in, one expression out.

The order of operations is eager's where it decides rounding or the treatment of NaN, infinities and signed zeros; the
names are ATen's. Operands of type bool appear where torch allows them: there addition is "or" and multiplication "and".
"""

from __future__ import annotations

import math

from stages.fusion.lowering.value import NotFusable
from stages.ir.dtype import DType
from stages.ir.expr import Const, Expr, Number, cast, const, op, select

# What a number's operator is on bool.
ON_BOOL = {
    "add": "or",
    "mul": "and",
    "maximum": "or",
    "minimum": "and",
    "bitand": "and",
    "bitor": "or",
    "bitxor": "xor",
    "bitnot": "not",
}


def apply(name: str, *operands: Expr) -> Expr:
    """The IR's operator `name`, or its form on bool."""
    if operands[0].dtype is DType.BOOL and name in ON_BOOL:
        name = ON_BOOL[name]
    return op(name, *operands)


def like(value: Number, example: Expr) -> Const:
    """The literal `value` in the type of `example`."""
    return const(value, example.dtype)


def scaled(value: Expr, factor: Number) -> Expr:
    """`value` times a Python scalar; nothing where that is 1."""
    return value if factor == 1 else apply("mul", value, like(factor, value))


# ---- arithmetic ---------------------------------------------------------------------------


def add(a: Expr, b: Expr, alpha: Number = 1) -> Expr:
    return apply("add", a, scaled(b, alpha))


def sub(a: Expr, b: Expr, alpha: Number = 1) -> Expr:
    return op("sub", a, scaled(b, alpha))


def rsub(a: Expr, b: Expr, alpha: Number = 1) -> Expr:
    return op("sub", b, scaled(a, alpha))


def neg(a: Expr) -> Expr:
    return op("neg", a)


def absolute(a: Expr) -> Expr:
    if a.dtype is DType.BOOL:
        raise TypeError("eager takes no absolute value of bools")
    return a if a.dtype is DType.UINT8 else op("abs", a)


def sign(a: Expr) -> Expr:
    """-1, 0 or 1; 0 of NaN and of -0.0."""
    return a if a.dtype is DType.BOOL else op("sign", a)


def reciprocal(a: Expr) -> Expr:
    return op("div", like(1, a), a)


def square(a: Expr) -> Expr:
    return apply("mul", a, a)


def addcmul(a: Expr, b: Expr, c: Expr, value: Number = 1) -> Expr:
    return op("add", a, op("mul", scaled(b, value), c))


def addcdiv(a: Expr, b: Expr, c: Expr, value: Number = 1) -> Expr:
    return op("add", a, op("div", scaled(b, value), c))


def lerp(start: Expr, end: Expr, weight: Expr) -> Expr:
    """start + weight * (end - start), from the nearer end (ATen/native/Lerp.h)."""
    span = op("sub", end, start)
    near = op("add", start, op("mul", weight, span))
    far = op("sub", end, op("mul", span, op("sub", like(1, weight), weight)))
    return select(op("lt", op("abs", weight), like(0.5, weight)), near, far)


# ---- division -----------------------------------------------------------------------------


def div(a: Expr, b: Expr, rounding_mode: str | None = None) -> Expr:
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode == "trunc":
        return trunc_divide(a, b)
    return op("div", a, b)


def _checked_divisor(a: Expr, b: Expr) -> int:
    """A whole-number divisor: only a literal is known not to be 0 (where eager raises an error)."""
    if a.dtype is DType.BOOL:
        raise NotFusable("a division of bools is not defined")
    if not isinstance(b, Const):
        raise NotFusable("it divides whole numbers by a tensor, which may hold 0: eager then raises an error")
    if b.value == 0:
        raise NotFusable("it divides whole numbers by 0: eager raises an error")
    return int(b.value)


def floor_divide(a: Expr, b: Expr) -> Expr:
    """Rounded towards minus infinity; for floats as c10::div_floor_floating, which is Python's."""
    if not a.dtype.is_float:
        return op("neg", a) if _checked_divisor(a, b) == -1 else op("floordiv", a, b)
    zero = like(0, a)
    remains = op("fmod", a, b)
    quotient = op("div", op("sub", a, remains), b)
    uneven = op("and", op("ne", remains, zero), op("ne", op("lt", b, zero), op("lt", remains, zero)))
    quotient = select(uneven, op("sub", quotient, like(1, a)), quotient)
    floored = op("floor", quotient)
    low = op("gt", op("sub", quotient, floored), like(0.5, a))
    floored = select(low, op("add", floored, like(1, a)), floored)
    exact = op("div", a, b)
    result = select(op("ne", quotient, zero), floored, op("copysign", zero, exact))
    return select(op("eq", b, zero), exact, result)


def trunc_divide(a: Expr, b: Expr) -> Expr:
    if not a.dtype.is_float:
        return op("neg", a) if _checked_divisor(a, b) == -1 else op("truncdiv", a, b)
    return op("trunc", op("div", a, b))


def remainder(a: Expr, b: Expr) -> Expr:
    """The rest with the sign of the divisor."""
    if not a.dtype.is_float:
        return like(0, a) if _checked_divisor(a, b) == -1 else op("mod", a, b)
    zero = like(0, a)
    rest = op("fmod", a, b)
    wrong = op("and", op("ne", rest, zero), op("ne", op("lt", b, zero), op("lt", rest, zero)))
    return select(wrong, op("add", rest, b), rest)


def fmod(a: Expr, b: Expr) -> Expr:
    """The rest with the sign of the dividend."""
    if not a.dtype.is_float and _checked_divisor(a, b) == -1:
        return like(0, a)
    return op("fmod", a, b)


# ---- powers -------------------------------------------------------------------------------


def power(base: Expr, exponent: Expr) -> Expr:
    """base ** exponent; a literal exponent takes eager's special cases (ATen/native/cpu/PowKernel.cpp)."""
    if isinstance(exponent, Const):
        return _power_of(base, exponent.value)
    if not base.dtype.is_float:
        raise NotFusable("it raises whole numbers to powers of a tensor, which may be negative: eager raises an error")
    return op("pow", base, exponent)


def _power_of(base: Expr, exponent: Number) -> Expr:
    if exponent == 0:
        return like(1, base)
    if exponent == 1:
        return base
    if not base.dtype.is_float:
        if exponent < 0 or base.dtype is DType.BOOL:
            raise NotFusable(f"it raises {base.dtype} to the power {exponent}")
        return _whole_power(base, int(exponent))
    special = {
        0.5: lambda: op("sqrt", base),
        2: lambda: op("mul", base, base),
        3: lambda: op("mul", op("mul", base, base), base),
        -0.5: lambda: op("rsqrt", base),
        -1: lambda: reciprocal(base),
        -2: lambda: reciprocal(op("mul", base, base)),
    }
    return special[exponent]() if exponent in special else op("pow", base, like(exponent, base))


def _whole_power(base: Expr, exponent: int) -> Expr:
    """By squaring; products wrap, and so does their order not matter."""
    result: Expr | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else op("mul", result, base)
        exponent >>= 1
        base = op("mul", base, base) if exponent else base
    assert result is not None
    return result


# ---- extremes and limits ------------------------------------------------------------------


def clamp(a: Expr, low: Expr | None = None, high: Expr | None = None, limit_first: bool = False) -> Expr:
    """min(max(a, low), high), so `high` wins where low > high; NaN in any of the three gives NaN.

    limit_first   of two zeros, the limit's is taken
    """
    for name, limit in (("maximum", low), ("minimum", high)):
        if limit is not None:
            a = apply(name, *((limit, a) if limit_first else (a, limit)))
    return a


def clamp_max(a: Expr, high: Expr) -> Expr:
    return clamp(a, None, high)


def fmax(a: Expr, b: Expr) -> Expr:
    """The larger; a number rather than NaN."""
    return _number_first("maximum", a, b)


def fmin(a: Expr, b: Expr) -> Expr:
    return _number_first("minimum", a, b)


def _number_first(name: str, a: Expr, b: Expr) -> Expr:
    if not a.dtype.is_float:
        return apply(name, a, b)
    return select(op("isnan", a), b, select(op("isnan", b), a, op(name, a, b)))


def threshold(a: Expr, limit: Expr, value: Expr) -> Expr:
    """a where a > limit, else value; NaN stays (ATen: x <= threshold ? value : x)."""
    return select(op("le", a, limit), value, a)


# ---- tests --------------------------------------------------------------------------------


def isnan(a: Expr) -> Expr:
    return op("isnan", a) if a.dtype.is_float else const(False, DType.BOOL)


def isinf(a: Expr) -> Expr:
    return op("isinf", a) if a.dtype.is_float else const(False, DType.BOOL)


def isfinite(a: Expr) -> Expr:
    if not a.dtype.is_float:
        return const(True, DType.BOOL)
    return op("not", op("or", op("isnan", a), op("isinf", a)))


def isposinf(a: Expr) -> Expr:
    return op("eq", a, like(math.inf, a)) if a.dtype.is_float else const(False, DType.BOOL)


def isneginf(a: Expr) -> Expr:
    return op("eq", a, like(-math.inf, a)) if a.dtype.is_float else const(False, DType.BOOL)


def signbit(a: Expr) -> Expr:
    """True of -0.0 and of a NaN with its sign set, too."""
    if a.dtype is DType.BOOL:
        return const(False, DType.BOOL)
    if not a.dtype.is_float:
        return op("lt", a, like(0, a))
    return op("lt", op("copysign", like(1, a), a), like(0, a))


def logical(name: str, *operands: Expr) -> Expr:
    return op(name, *(cast(value, DType.BOOL) for value in operands))


# ---- rounding -----------------------------------------------------------------------------


def whole(name: str, a: Expr) -> Expr:
    """floor, ceil, round or trunc, which leave whole numbers as they are."""
    return op(name, a) if a.dtype.is_float else a


def round_decimals(a: Expr, decimals: int = 0) -> Expr:
    """Half to even at a decimal place, through a power of ten as ATen does it."""
    if not a.dtype.is_float or decimals == 0:
        return whole("round", a)
    ten = like(10.0 ** abs(decimals), a)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return op(back, op("round", op(there, a, ten)), ten)


def frac(a: Expr) -> Expr:
    return op("sub", a, op("trunc", a))


def shift(name: str, a: Expr, b: Expr) -> Expr:
    """A shift by a literal inside the width; other counts differ from type to type in eager."""
    if a.dtype is DType.BOOL or not isinstance(b, Const) or not 0 <= b.value < 8 * a.dtype.itemsize:
        raise NotFusable("it shifts by a count that is not known to lie inside the type's width")
    return op(name, a, b)
