"""How Triton writes each operator, conversion and combine of the loop IR, as tables.

Comes in: a name of `ir.ops.OPS` or `ir.ops.COMBINES` and the operands' type. Goes out: a source template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.ir.dtype import DType
from stages.ir.kernel import IRError

F32, F64 = DType.FLOAT32, DType.FLOAT64

# Bool is stored in bytes: memory holds 0 or 1, and a loaded byte is compared with 0.
SIGNATURE = {
    DType.BOOL: "*u8",
    DType.UINT8: "*u8",
    DType.INT8: "*i8",
    DType.INT16: "*i16",
    DType.INT32: "*i32",
    DType.INT64: "*i64",
    DType.FLOAT16: "*fp16",
    DType.BFLOAT16: "*bf16",
    DType.FLOAT32: "*fp32",
    DType.FLOAT64: "*fp64",
}
# What `tl.atomic_add` takes.
ATOMIC = frozenset({DType.INT32, DType.INT64, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})

_LIBM = (
    "acos acosh asin asinh atan atan2 atanh copysign cos cosh erf erfc exp exp2 expm1 hypot log log10 log1p log2 "
    "nextafter pow rsqrt sin sinh tan tanh trunc"
)

OPERATORS: dict[str, str] = {
    **{name: f"libm.{name}({{0}})" for name in _LIBM.split()},
    **{name: f"libm.{name}({{0}}, {{1}})" for name in ("atan2", "copysign", "hypot", "nextafter", "pow")},
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    # `0 - x`, which some releases of Triton make of a minus, would lose the sign of zero.
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "sign": "functions.sign({0})",
    "minimum": "functions.minimum({0}, {1})",
    "maximum": "functions.maximum({0}, {1})",
    "floordiv": "functions.floor_divide({0}, {1})",
    "mod": "functions.floor_modulo({0}, {1})",
    "truncdiv": "functions.truncated_divide({0}, {1})",
    "fmod": "functions.truncated_remainder({0}, {1})",
    "bitand": "{0} & {1}",
    "bitor": "{0} | {1}",
    "bitxor": "{0} ^ {1}",
    "bitnot": "~{0}",
    "shl": "{0} << {1}",
    "shr": "{0} >> {1}",
    "sqrt": "libm.sqrt({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "libm.rint({0})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "not": "~{0}",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "bounded": "functions.wrap_index({0}, {1})",
}

# Where one operand type wants another form. `tl.div_rn` and `tl.sqrt_rn` exist for float32 alone, whose plain forms
# are approximations; those of float64 are correctly rounded as they are.
SPECIAL: dict[tuple[str, DType], str] = {
    ("div", F32): "tl.div_rn({0}, {1})",
    ("sqrt", F32): "tl.sqrt_rn({0})",
    ("neg", F32): "{0} * -1.0",
    ("neg", F64): "{0} * -1.0",
    # Triton's interpreter has no `~` on unsigned numbers.
    ("bitnot", DType.UINT8): "{0} ^ 255",
    ("fmod", F32): "libm.fmod({0}, {1})",
    ("fmod", F64): "libm.fmod({0}, {1})",
}


def operator(name: str, dtype: DType, *args: str) -> str:
    """The source of `name` over operands of `dtype` whose sources are `args`."""
    return SPECIAL.get((name, dtype), OPERATORS[name]).format(*args)


def literal(value: bool | int | float, dtype: DType, shape: Sequence[int] = ()) -> str:
    """A scalar, or a block of `shape`, of exactly `dtype`; of a plain number Triton would choose the type."""
    if dtype is DType.BOOL:
        return f"tl.full({list(shape)}, {int(value)}, tl.int1)"
    if dtype.is_float and value != value:
        text = 'float("nan")'
    elif dtype.is_float and value in (float("inf"), float("-inf")):
        text = f'float("{value}")'
    else:
        text = repr(float(value) if dtype.is_float else int(value))
    if text == "-0.0":  # Triton makes 0.0 of it
        return f"(tl.full({list(shape)}, 0.0, tl.{dtype.value}) * -1.0)"
    return f"tl.full({list(shape)}, {text}, tl.{dtype.value})"


def conversion(source: str, old: DType, new: DType) -> str:
    """`source` of type `old` as `new`, by the way eager takes: half types through float32, uint8 through int64."""
    if old.is_half:
        return conversion(f"libm.to_float32({source})", F32, new) if new is not F32 else f"libm.to_float32({source})"
    if new is DType.BOOL:
        return f"{source} != 0"
    if new.is_half:
        single = source if old is F32 else f"{source}.to(tl.float32)"
        return f"libm.to_bfloat16({single})" if new is DType.BFLOAT16 else f"{single}.to(tl.float16)"
    if old.is_float and new is DType.UINT8:
        return f"{source}.to(tl.int64).to(tl.uint8)"
    if old.is_float and new in (DType.INT8, DType.INT16):
        return f"{source}.to(tl.int32).to(tl.{new.value})"
    return f"{source}.to(tl.{new.value})"


@dataclass(frozen=True)
class Combine:
    """A combine of `Reduce`.

    lanes     two accumulators as one, element by element: `{0}` holds what was combined, `{1}` is new
    across    one block along `{axis}`; `{keep}` says whether the axis stays, with one position
    """

    lanes: str
    across: str


def _function(name: str) -> Combine:
    return Combine(
        f"functions.{name}({{0}}, {{1}})", f"tl.reduce({{0}}, {{axis}}, functions.{name}, keep_dims={{keep}})"
    )


REDUCTIONS: dict[str, Combine] = {
    "sum": Combine("{0} + {1}", "tl.sum({0}, {axis}, keep_dims={keep})"),
    "prod": _function("multiply"),
    "max": _function("maximum"),
    "min": _function("minimum"),
    "any": _function("bit_or"),
    "all": _function("bit_and"),
    "argmax": _function("argmax"),
    "argmin": _function("argmin"),
}


def identity(combine: str, dtype: DType) -> bool | int | float:
    """The value that `combine` over elements of `dtype` leaves out of account."""
    if combine in ("sum", "prod", "any", "all"):
        return {"sum": 0, "prod": 1, "any": False, "all": True}[combine]
    largest = combine in ("max", "argmax")
    if dtype.is_float:
        return float("-inf") if largest else float("inf")
    bits = 8 * dtype.itemsize
    low, high = (0, (1 << bits) - 1) if dtype is DType.UINT8 else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return low if largest else high


def check_atomic(dtype: DType, buffer: str) -> None:
    """Raise `IRError` where Triton has no atomic addition on `dtype`."""
    if dtype not in ATOMIC:
        raise IRError(f"an atomic addition to {buffer} of {dtype}: Triton has none; add in a wider type and cast after")
