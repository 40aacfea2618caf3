"""Elementwise operators, as a table: ATen overloads, the rule of type promotion, the formula.

Each operand, a tensor or a Python scalar, is broadcast and converted to the common dtype, and the formula is applied in
the compute type of that; parameters that are no operands (`alpha`, `approximate`, ...) go to the formula as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from stages.fusion.lowering import activations as act
from stages.fusion.lowering import formulas as f
from stages.fusion.lowering.context import Context
from stages.fusion.lowering.promotion import Operand, Promotion, common_dtype, operand
from stages.fusion.lowering.registry import lowers, overloads, register
from stages.fusion.lowering.value import NotFusable, Position, Value, compute_type, dimension, literal
from stages.ir.expr import Buffer, Expr, Number, load, op, select
from stages.ir.index import add, number
from stages.ir.ops import OPS, Rule

Formula = Callable[..., Expr]

SAME, FLOAT, EACH = Promotion.DEFAULT, Promotion.INT_TO_FLOAT, None

# These keep whole numbers as they are; every other float operator of the IR turns them into floats, as torch does.
ROUNDING = ("floor", "ceil", "round", "trunc")


def elementwise(
    context: Context,
    formula: Formula,
    operands: tuple[Operand, ...],
    parameters: tuple[Any, ...] = (),
    named: dict[str, Any] | None = None,
    promotion: Promotion | None = SAME,
    exact: bool = False,
) -> Value:
    """The value of `formula` over broadcast `operands`.

    promotion   how the common dtype is found; None leaves each operand in its own
    exact       Python scalars are not rounded to a half common dtype

    Raises `NotFusable` if the formula is not defined on the operands' types.
    """
    common = common_dtype(operands, promotion) if promotion is not None else None

    def dtype_of(entry: Operand) -> torch.dtype:
        if common is not None:
            return common
        assert entry is not None
        return entry.dtype if isinstance(entry, Value) else torch.result_type(entry, entry)

    def at(position: Position) -> Expr:
        exprs = (operand(entry, dtype_of(entry), position, exact) for entry in operands)
        return formula(*exprs, *parameters, **(named or {}))

    stand_ins = (
        load(Buffer("stand_in", compute_type(dtype_of(entry)), 1), number(0))
        if isinstance(entry, Value)
        else operand(entry, dtype_of(entry), (), exact)
        for entry in operands
    )
    try:
        formula(*stand_ins, *parameters, **(named or {}))
    except TypeError as error:
        raise NotFusable(str(error)) from error
    return context.result(at)


def table(promotion: Promotion | None, operands: int, entries: dict[str, Formula], exact: bool = False) -> None:
    """Enter elementwise operators: overloads -> formula, whose first `operands` arguments are operands."""

    def lowering(formula: Formula, context: Context, *args: Any, **named: Any) -> Value:
        return elementwise(context, formula, args[:operands], args[operands:], named, promotion, exact)

    for names, formula in entries.items():
        for overload in overloads(names):
            register(overload, partial(lowering, formula))


def ir(name: str) -> Formula:
    """The IR's operator of this name as a formula."""
    return partial(f.apply, name)


# ---- one operand --------------------------------------------------------------------------

table(
    FLOAT,
    1,
    {
        name: ir(name)
        for name, info in OPS.items()
        if info.rule is Rule.FLOAT and info.arity == 1 and name not in ROUNDING
    },
)
table(FLOAT, 1, {"special_erf": ir("erf"), "special_expm1": ir("expm1"), "special_log1p": ir("log1p")})
table(FLOAT, 1, {"reciprocal": f.reciprocal, "sigmoid special_expit": act.sigmoid, "logit": act.logit})
table(FLOAT, 1, {"sinc": act.sinc, "deg2rad": partial(f.scaled, factor=torch.pi / 180)})
table(FLOAT, 1, {"rad2deg": partial(f.scaled, factor=180 / torch.pi)})
table(
    SAME,
    1,
    {
        "neg": f.neg,
        "abs": f.absolute,
        "sign sgn": f.sign,
        "square": f.square,
        "bitwise_not": ir("bitnot"),
        "positive": lambda x: x,
        "floor": partial(f.whole, "floor"),
        "ceil": partial(f.whole, "ceil"),
        "trunc fix": partial(f.whole, "trunc"),
        "round round.decimals": f.round_decimals,
        "frac": f.frac,
        "relu": act.relu,
        "silu": act.silu,
        "gelu": act.gelu,
        "softplus": act.softplus,
        "mish": act.mish,
        "elu": act.elu,
        "selu": act.selu,
        "celu": act.celu,
        "leaky_relu": act.leaky_relu,
        "hardswish": act.hardswish,
        "hardsigmoid": act.hardsigmoid,
        "softshrink": act.softshrink,
        "hardshrink": act.hardshrink,
    },
)
table(
    EACH,
    1,
    {
        "isnan": f.isnan,
        "isinf": f.isinf,
        "isfinite": f.isfinite,
        "isposinf": f.isposinf,
        "isneginf": f.isneginf,
        "signbit": f.signbit,
        "logical_not": partial(f.logical, "not"),
    },
)


# ---- two and three operands ---------------------------------------------------------------

# add, mul and the like take a Python scalar in the compute type, unrounded; the others round it to a half type first.
table(
    SAME,
    2,
    {
        "add.Tensor add.Scalar": f.add,
        "sub.Tensor sub.Scalar": f.sub,
        "rsub.Tensor rsub.Scalar": f.rsub,
        "mul.Tensor mul.Scalar": ir("mul"),
        "div.Tensor_mode div.Scalar_mode": f.div,
        "floor_divide floor_divide.Scalar": f.floor_divide,
    },
    exact=True,
)
table(FLOAT, 2, {"div.Tensor div.Scalar true_divide.Tensor": f.div}, exact=True)
table(
    SAME,
    2,
    {
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": f.remainder,
        "fmod.Tensor fmod.Scalar": f.fmod,
        "pow.Tensor_Tensor pow.Scalar": f.power,
        "fmax": f.fmax,
        "fmin": f.fmin,
        "clamp_min": f.clamp,
        "clamp_max": f.clamp_max,
        "bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor": ir("bitand"),
        "bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor": ir("bitor"),
        "bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor": ir("bitxor"),
        "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar __lshift__.Scalar": partial(f.shift, "shl"),
        "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar __rshift__.Scalar": partial(f.shift, "shr"),
        "hypot": ir("hypot"),
        "logaddexp": act.logaddexp,
        "heaviside": act.heaviside,
        "_prelu_kernel": act.prelu,
    },
)
table(
    FLOAT,
    2,
    {
        "atan2": ir("atan2"),
        "copysign.Tensor copysign.Scalar": ir("copysign"),
        "xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self": act.xlogy,
    },
)
table(
    Promotion.ALWAYS_BOOL,
    2,
    {f"{name}.Tensor {name}.Scalar {name}.Scalar_Tensor": ir(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
)
table(EACH, 2, {f"logical_{name}": partial(f.logical, name) for name in ("and", "or", "xor")})
table(SAME, 3, {"clamp": f.clamp, "lerp.Tensor lerp.Scalar": f.lerp}, exact=True)
table(SAME, 3, {"addcmul": f.addcmul, "addcdiv": f.addcdiv, "threshold": f.threshold}, exact=True)


@lowers("pow.Tensor_Scalar")
def power(context: Context, base: Value, exponent: Number) -> Value:
    """base ** exponent. Eager's special cases (a square root for 0.5, ...) are not those of float16 on a CPU."""
    plain = base.dtype is torch.float16 and context.output().device.type == "cpu"
    return elementwise(context, ir("pow") if plain else f.power, (base, exponent))


def _first_of_zeros(context: Context) -> bool:
    """Whether eager's extreme of two zeros of different sign is the first: in its loop over single elements.

    Its loop over vectors, which starts at two AVX2 registers of elements, gives the second.
    """
    result = context.output()
    return not result.dtype.is_floating_point or result.numel() * result.dtype.itemsize < 64


def _extreme(context: Context, name: str, x: Operand, y: Operand) -> Value:
    return elementwise(context, ir(name), (x, y) if _first_of_zeros(context) else (y, x))


@lowers("maximum")
def maximum(context: Context, x: Value, y: Value) -> Value:
    """The larger; NaN where either is."""
    return _extreme(context, "maximum", x, y)


@lowers("minimum")
def minimum(context: Context, x: Value, y: Value) -> Value:
    """The smaller; NaN where either is."""
    return _extreme(context, "minimum", x, y)


@lowers("clamp.Tensor")
def clamp(context: Context, x: Value, min: Value | None = None, max: Value | None = None) -> Value:
    """Kept between tensors, which promote; NaN where any of the three is."""
    return elementwise(context, partial(f.clamp, limit_first=not _first_of_zeros(context)), (x, min, max))


@lowers("clamp_min.Tensor")
def clamp_min(context: Context, x: Value, min: Value) -> Value:
    return clamp(context, x, min)


@lowers("clamp_max.Tensor")
def clamp_max(context: Context, x: Value, max: Value) -> Value:
    return clamp(context, x, None, max)


@lowers("hardtanh")
def hardtanh(context: Context, x: Value, low: Number = -1, high: Number = 1) -> Value:
    """Clamped; the limits never promote."""
    limits = (literal(low, x.dtype), literal(high, x.dtype))
    return context.result(lambda position: f.clamp(x.at(position), *limits))


@lowers("nextafter")
def nextafter(context: Context, x: Value, towards: Value) -> Value:
    """The neighbouring number of the type; of a half type it would have to be computed in that type."""
    if context.output().dtype in (torch.float16, torch.bfloat16):
        raise NotFusable("the neighbour of a half-precision number is not that of its float32")
    return elementwise(context, ir("nextafter"), (x, towards))


@lowers("nan_to_num")
def nan_to_num(
    context: Context, x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    """NaN and infinities replaced; those left out by the limits of the tensor's own dtype."""
    if not x.dtype.is_floating_point:
        return x
    limits = torch.finfo(x.dtype)
    when_nan = literal(0.0 if nan is None else nan, x.dtype)
    when_high = literal(limits.max if posinf is None else posinf, x.dtype)
    when_low = literal(limits.min if neginf is None else neginf, x.dtype)

    def at(position: Position) -> Expr:
        element = x.at(position)
        finite = select(f.isneginf(element), when_low, select(f.isposinf(element), when_high, element))
        return select(op("isnan", element), when_nan, finite)

    return context.result(at)


# ---- choices ------------------------------------------------------------------------------


@lowers("where.self where.ScalarSelf where.ScalarOther where.Scalar")
def where(context: Context, condition: Value, yes: Operand, no: Operand) -> Value:
    """yes where condition, else no; only the two sides are promoted. A uint8 condition counts as bool."""
    common = common_dtype((yes, no))

    def at(position: Position) -> Expr:
        holds = operand(condition, torch.bool, position)
        sides = (operand(yes, common, position), operand(no, common, position))
        assert holds is not None and sides[0] is not None and sides[1] is not None
        return select(holds, sides[0], sides[1])

    return context.result(at)


@lowers("masked_fill.Scalar masked_fill.Tensor")
def masked_fill(context: Context, x: Value, mask: Value, filler: Operand) -> Value:
    """`filler` where `mask`; it takes the dtype of `x`, whatever its own."""

    def at(position: Position) -> Expr:
        holds = operand(mask, torch.bool, position)
        fill, element = operand(filler, x.dtype, position), operand(x, x.dtype, position)
        assert holds is not None and fill is not None and element is not None
        return select(holds, fill, element)

    return context.result(at)


# ---- with the shape in play ---------------------------------------------------------------


@lowers("glu")
def glu(context: Context, x: Value, dim: int = -1) -> Value:
    """The first half of `dim` times the sigmoid of the second."""
    dim = dimension(dim, x.ndim)
    half = x.shape[dim] // 2

    def at(position: Position) -> Expr:
        gate = (*position[:dim], add(position[dim], half), *position[dim + 1 :])
        return act.glu(x.at(position), x.at(gate))

    return context.result(at)


@lowers("log_sigmoid_forward")
def log_sigmoid_forward(context: Context, x: Value) -> tuple[Value, None]:
    """log(sigmoid(x)); the second result is a work space of the backward pass."""
    return context.result(lambda position: act.log_sigmoid(x.at(position))), None


@lowers("native_dropout")
def native_dropout(context: Context, x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    """Dropout in evaluation: the input, and a mask of ones."""
    if train is not False:
        raise NotFusable("it draws random numbers")
    ones = literal(True, torch.bool)
    return context.result(x.at), context.result(lambda position: ones, 1)
