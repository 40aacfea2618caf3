"""The scalar operators of the loop IR, as data: how many operands, which types, which type comes out.

Both printers and the interpreter are tables over these names; `tests/codegen` checks that none is missing.
Semantics are C's for floats under round-to-nearest and two's complement wrap-around for whole numbers;
where torch differs from C, the comment says what holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

from stages.ir.dtype import DType


class Rule(Enum):
    """How operand types determine the result type."""

    NUMBER = "number"  # operands share one whole-number or float type; the result has it
    FLOAT = "float"  # operands share float32 or float64; the result has it
    INTEGER = "integer"  # operands share one whole-number type; the result has it
    COMPARE = "compare"  # operands share one type, bool included; the result is bool
    LOGICAL = "logical"  # operands are bool; the result is bool
    CLASSIFY = "classify"  # one float operand; the result is bool
    INDEX = "index"  # int64 index and int64 constant size; the result is int64


@dataclass(frozen=True)
class OpInfo:
    """What is fixed about one operator."""

    arity: int
    rule: Rule


def _table(rule: Rule, arity: int, names: str) -> dict[str, OpInfo]:
    return {name: OpInfo(arity, rule) for name in names.split()}


OPS: dict[str, OpInfo] = {
    # minimum and maximum propagate NaN, as torch's do. Of two zeros of different sign they give the first on a CPU, and
    # on CUDA the positive one as maximum, the negative one as minimum, as eager does there.
    **_table(Rule.NUMBER, 2, "add sub mul minimum maximum"),
    # sign of NaN is 0, and so is that of -0.0.
    **_table(Rule.NUMBER, 1, "neg abs sign"),
    # floordiv and mod round towards minus infinity (Python's), truncdiv and fmod towards zero (C's).
    # A whole-number divisor is never 0 and never -1 with the least dividend: lowering guarantees it.
    **_table(Rule.INTEGER, 2, "floordiv mod truncdiv bitand bitor bitxor shl shr"),
    **_table(Rule.NUMBER, 2, "fmod"),
    **_table(Rule.INTEGER, 1, "bitnot"),
    **_table(Rule.FLOAT, 2, "div pow atan2 copysign hypot nextafter"),
    # round is half to even.
    **_table(
        Rule.FLOAT,
        1,
        "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
        "erf erfc floor ceil round trunc",
    ),
    **_table(Rule.COMPARE, 2, "eq ne lt le gt ge"),
    **_table(Rule.LOGICAL, 2, "and or xor"),
    **_table(Rule.LOGICAL, 1, "not"),
    **_table(Rule.CLASSIFY, 1, "isnan isinf"),
    # bounded(i, n): i, or i + n where i is negative; outside [-n, n) the kernel reports an index error and 0 is used.
    **_table(Rule.INDEX, 2, "bounded"),
}

# The combines of `Reduce`. argmax and argmin give the int64 position, in the row-major order of the reduced axes, of
# the first extreme value; a NaN is more extreme than any number. max and min propagate NaN; which of equal zeros they
# give is left open, as eager's depends on the length of the row.
COMBINES: frozenset[str] = frozenset({"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"})


@cache
def result_dtype(name: str, operands: tuple[DType, ...]) -> DType:
    """The type of `name` over operands of these types.

    Raises `TypeError` naming the operator and the rule broken: an unknown name, a wrong count, mixed types, or a
    half type, which has to be cast to float32 first.
    """
    info = OPS.get(name)
    if info is None:
        raise TypeError(f"the loop IR has no operator '{name}'")
    if len(operands) != info.arity:
        raise TypeError(f"'{name}' takes {info.arity} operands, not {len(operands)}")
    first = operands[0]
    if len(set(operands)) != 1:
        raise TypeError(f"'{name}' wants operands of one type, not {', '.join(map(str, operands))}")
    if first.is_half:
        raise TypeError(f"'{name}' on {first}: half types are storage only, cast to float32 first")
    allowed = {
        Rule.NUMBER: first is not DType.BOOL,
        Rule.FLOAT: first.is_float,
        Rule.INTEGER: first.is_integer,
        Rule.COMPARE: True,
        Rule.LOGICAL: first is DType.BOOL,
        Rule.CLASSIFY: first.is_float,
        Rule.INDEX: first is DType.INT64,
    }
    if not allowed[info.rule]:
        raise TypeError(f"'{name}' is not defined on {first}")
    return DType.BOOL if info.rule in (Rule.COMPARE, Rule.LOGICAL, Rule.CLASSIFY) else first


def reduce_dtype(combine: str, body: DType) -> DType:
    """The type of `Reduce(combine, ..., body)`. Raises `TypeError` for a combine that is not defined on `body`."""
    if combine not in COMBINES:
        raise TypeError(f"the loop IR has no combine '{combine}'")
    if body.is_half:
        raise TypeError(f"'{combine}' over {body}: half types are storage only, cast to float32 first")
    if combine in ("any", "all"):
        if body is not DType.BOOL:
            raise TypeError(f"'{combine}' wants bool, not {body}")
        return DType.BOOL
    if body is DType.BOOL:
        raise TypeError(f"'{combine}' is not defined on bool: cast first")
    return DType.INT64 if combine in ("argmax", "argmin") else body
