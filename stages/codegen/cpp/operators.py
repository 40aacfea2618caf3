"""The C++ printer's tables: how element types, operators, conversions and combines of the loop IR are spelled.

The functions named here are those of `include/*.h`; each takes a scalar or a vector of any lane count.
"""

from __future__ import annotations

import ctypes
import math

import torch

from stages.ir.dtype import DType
from stages.ir.expr import Cast, Expr, Load, Number, Op

# In memory. A half type is its bits; a bool is a byte, 0 or 1.
C_TYPES: dict[DType, str] = {
    DType.BOOL: "uint8_t",
    DType.UINT8: "uint8_t",
    DType.INT8: "int8_t",
    DType.INT16: "int16_t",
    DType.INT32: "int32_t",
    DType.INT64: "int64_t",
    DType.FLOAT16: "uint16_t",
    DType.BFLOAT16: "uint16_t",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
}

# C++ reserves and, or, not, xor, bitand and bitor; the rest are called what the IR calls them.
FUNCTIONS: dict[str, str] = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "minimum": "minimum",
    "maximum": "maximum",
    "neg": "neg",
    "abs": "abs",
    "sign": "sign",
    "floordiv": "floordiv",
    "mod": "mod",
    "truncdiv": "truncdiv",
    "fmod": "fmod",
    "bitand": "bitand_",
    "bitor": "bitor_",
    "bitxor": "bitxor_",
    "bitnot": "bitnot",
    "shl": "shl",
    "shr": "shr",
    "div": "div",
    "pow": "pow",
    "atan2": "atan2",
    "copysign": "copysign",
    "hypot": "hypot",
    "nextafter": "nextafter",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log10": "log10",
    "log1p": "log1p",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "sinh": "sinh",
    "cosh": "cosh",
    "tanh": "tanh",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "erf": "erf",
    "erfc": "erfc",
    "floor": "floor",
    "ceil": "ceil",
    "round": "round",
    "trunc": "trunc",
    "eq": "eq",
    "ne": "ne",
    "lt": "lt",
    "le": "le",
    "gt": "gt",
    "ge": "ge",
    "and": "logical_and",
    "or": "logical_or",
    "xor": "logical_xor",
    "not": "logical_not",
    "isnan": "isnan",
    "isinf": "isinf",
    "bounded": "bounded",
}

_VECTOR_MATH = dict.fromkeys(
    ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "erf", "erfc"), 12.0
)
_LANE_BY_LANE = (
    *("pow", "atan2", "hypot", "nextafter", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("fmod", "floordiv", "mod", "truncdiv"),
)
# What one lane of an operator costs, in units of one addition; 1 for those not named.
COSTS: dict[str, float] = {
    **_VECTOR_MATH,
    **dict.fromkeys(_LANE_BY_LANE, 40.0),
    **dict.fromkeys(("div", "sqrt", "rsqrt"), 4.0),
}

# How a reduction accumulates, (accumulator, value) -> accumulator, and the function object that folds lanes with it.
COMBINES: dict[str, tuple[str, str]] = {
    "sum": ("add", "Add()"),
    "prod": ("mul", "Mul()"),
    "max": ("maximum", "Maximum()"),
    "min": ("minimum", "Minimum()"),
    "any": ("logical_or", "Or()"),
    "all": ("logical_and", "And()"),
    "argmax": ("take", "Larger()"),
    "argmin": ("take", "Smaller()"),
}

# Addition to memory, atomically; elements that a register holds as bits need their own.
ATOMIC_SUMS: dict[DType, str] = {
    **dict.fromkeys(DType, "Add()"),
    DType.BOOL: "Or()",
    DType.BFLOAT16: "AddBfloat16()",
    DType.FLOAT16: "AddFloat16()",
}


def identity(combine: str, dtype: DType) -> Number:
    """What `combine` over no values of `dtype` gives; for argmax and argmin, a value that none is less extreme than."""
    if combine in ("sum", "any"):
        return False if combine == "any" else 0
    if combine in ("prod", "all"):
        return True if combine == "all" else 1
    sign = -1 if combine in ("max", "argmax") else 1
    if dtype.is_float:
        return sign * math.inf
    limits = torch.iinfo(dtype.torch)
    return limits.min if sign < 0 else limits.max


def literal(value: Number, dtype: DType) -> str:
    """`value` as a C++ expression of exactly the type that an element of `dtype` has in a register."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_half:
        bits = int(torch.tensor(float(value), dtype=dtype.torch, device="cpu").view(torch.int16).item()) & 0xFFFF
        return f"uint16_t(0x{bits:04x})"
    if not dtype.is_float:
        text = "INT64_MIN" if value == -(1 << 63) else f"{int(value)}"
        return f"{C_TYPES[dtype]}({text})"
    suffix = "f" if dtype is DType.FLOAT32 else ""
    number = ctypes.c_float(value).value if suffix else float(value)
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}__builtin_inf{suffix}()"
    return _shortest(number, suffix)


def _shortest(number: float, suffix: str) -> str:
    """The shortest decimal that reads back as `number`, in double or, with suffix f, in single precision."""
    if not suffix:
        return repr(number)
    for digits in range(1, 10):
        text = f"{number:.{digits}g}"
        if ctypes.c_float(float(text)).value == number:
            break
    return (text if set(text) & set(".en") else f"{text}.0") + suffix


def conversion(text: str, source: DType, target: DType, lanes: str) -> str:
    """`text`, a value of type `source`, as one of type `target`. Whatever is not float32 reaches a half type by it."""
    if source.is_half:
        return conversion(f"from_{source}({lanes}, {text})", DType.FLOAT32, target, lanes)
    if source is target:
        return text
    if target.is_half:
        return f"to_{target}({lanes}, {conversion(text, source, DType.FLOAT32, lanes)})"
    if target is DType.BOOL:
        return f"to_bool({text})"
    if source is DType.BOOL:
        return f"from_bool<{C_TYPES[target]}>({lanes}, {text})"
    return f"convert<{C_TYPES[target]}>({lanes}, {text})"


def weight(node: Expr) -> float:
    """About what one lane of `node` costs, in units of one addition."""
    if isinstance(node, Op):
        in_library = node.name in _VECTOR_MATH and node.dtype is DType.FLOAT64
        return COSTS["pow"] if in_library else COSTS.get(node.name, 1.0)
    if isinstance(node, Cast):
        return 2.0
    return 1.0 if isinstance(node, Load) or node.children else 0.0
