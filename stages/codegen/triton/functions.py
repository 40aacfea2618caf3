"""Functions that generated kernels call, written in Triton alone, so that they run on a device and interpreted.

Comes in: blocks or scalars of one element type. What needs the device's mathematical library is in `libm`.
The annotations are for people and type checkers; Triton infers the types.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

# ---- combines of reductions -----------------------------------------------------------------


@triton.jit
def multiply(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a * b


@triton.jit
def maximum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The larger; NaN where either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The smaller; NaN where either is NaN."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def bit_or(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a | b


@triton.jit
def bit_and(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a & b


@triton.jit
def argmax(a: tl.tensor, a_at: tl.tensor, b: tl.tensor, b_at: tl.tensor) -> tl.tensor:
    """The larger of two values with its position; NaN is larger than any number, and the first of equals wins."""
    a_nan = a != a
    b_nan = b != b
    larger = (a > b) | (a_nan & (b == b))
    equal = (a == b) | (a_nan & b_nan)
    keep = larger | (equal & (a_at < b_at))
    return tl.where(keep, a, b), tl.where(keep, a_at, b_at)


@triton.jit
def argmin(a: tl.tensor, a_at: tl.tensor, b: tl.tensor, b_at: tl.tensor) -> tl.tensor:
    """The smaller of two values with its position; NaN is smaller than any number, and the first of equals wins."""
    a_nan = a != a
    b_nan = b != b
    smaller = (a < b) | (a_nan & (b == b))
    equal = (a == b) | (a_nan & b_nan)
    keep = smaller | (equal & (a_at < b_at))
    return tl.where(keep, a, b), tl.where(keep, a_at, b_at)


# ---- whole numbers --------------------------------------------------------------------------
# A divisor is never 0 at a position that counts; at those that are masked out it may be, and division by it would be
# undefined for the whole block, hence `_divisor`.


@triton.jit
def _divisor(b: tl.tensor) -> tl.tensor:
    return tl.where(b == 0, b + 1, b)


@triton.jit
def truncated_divide(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """a / b rounded towards zero, as C divides."""
    return a // _divisor(b)


@triton.jit
def truncated_remainder(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """What `truncated_divide` leaves; it has the sign of `a`."""
    return a % _divisor(b)


@triton.jit
def floor_divide(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """a / b rounded towards minus infinity, as Python divides."""
    divisor = _divisor(b)
    quotient = a // divisor
    rest = a - quotient * divisor
    return tl.where((rest != 0) & ((rest < 0) != (divisor < 0)), quotient - 1, quotient)


@triton.jit
def floor_modulo(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """What `floor_divide` leaves; it has the sign of `b`."""
    divisor = _divisor(b)
    rest = a % divisor
    return tl.where((rest != 0) & ((rest < 0) != (divisor < 0)), rest + divisor, rest)


@triton.jit
def sign(a: tl.tensor) -> tl.tensor:
    """-1, 0 or 1 in the type of `a`; 0 for NaN, as torch has it."""
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


@triton.jit
def wrap_index(index: tl.tensor, size: tl.tensor) -> tl.tensor:
    """`index` counted from the end where it is negative."""
    return tl.where(index < 0, index + size, index)
