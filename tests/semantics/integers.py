"""Whole numbers and bools: signs of quotients and remainders, division by 0, wrapping, shifts, sums, conversions."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.semantics.case import Case, case, each, group

DTYPES = {
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
}


def numbers(dtype: torch.dtype) -> Tensor:
    """The least, the largest, and small ones of both signs (unsigned: large ones)."""
    info = torch.iinfo(dtype)
    small = [0, 1, 2, 3, 5, 7, 8, 100, 127]
    negative = [info.max - number for number in (0, 1, 2, 7)] if info.min == 0 else [-1, -2, -3, -5, -7, -8, -100]
    return torch.tensor([info.min, info.min + 1, info.max, info.max - 1, *small, *negative], dtype=dtype)


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    every = numbers(dtype)
    return every[:, None].expand(-1, len(every)).contiguous(), every[None].expand(len(every), -1).contiguous()


def divisible(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pairs without a divisor of 0, and without the least number by -1, on which the processor traps in eager."""
    a, b = pairs(dtype)
    info = torch.iinfo(dtype)
    trap = (b == 0) | ((a == info.min) & (b == -1) & (info.min < 0))
    return a[~trap], b[~trap]


DIVISIONS = {
    "div": torch.div,
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "a - a // b * b": lambda a, b: a - a // b * b,
}


def _by(divisor: int) -> dict:
    by = torch.tensor(divisor)
    return {
        f"floor {divisor}": lambda a: torch.div(a, divisor, rounding_mode="floor"),
        f"trunc {divisor}": lambda a: torch.div(a, divisor, rounding_mode="trunc"),
        f"floor_divide {divisor}": lambda a: torch.floor_divide(a, divisor),
        f"/ {divisor}": lambda a: a / divisor,
        f"% {divisor}": lambda a: a % divisor,
        f"fmod {divisor}": lambda a: torch.fmod(a, divisor),
        f"// tensor {divisor}": lambda a: a // by.to(a.dtype),
        f"% tensor {divisor}": lambda a: torch.remainder(a, by.to(a.dtype)),
    }


def _under(dividend: int) -> dict:
    return {
        f"{dividend} // a": lambda a: dividend // a,
        f"{dividend} % a": lambda a: dividend % a,
        f"{dividend} / a": lambda a: dividend / a,
        f"remainder of {dividend}": lambda a: torch.remainder(dividend, a),
    }


ARITHMETIC = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "add alpha": lambda a, b: torch.add(a, b, alpha=3),
    "sub alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "rsub": lambda a, b: torch.rsub(a, b),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": lambda a, b: ~a,
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=2),
    "lt": torch.lt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "gcd": lambda a, b: torch.gcd(a.abs() // 2, b.abs() // 2),
    "clamp": lambda a, b: torch.clamp(a, 1, 5),
    "clamp tensors": lambda a, b: torch.clamp(a, b, a),
    "where": lambda a, b: torch.where(a > b, a, b),
    "a * 0": lambda a, b: a * 0,
    "a * a * a": lambda a, b: a * a * a,
    "a ** 2": lambda a, b: a**2,
    "a ** 5": lambda a, b: a**5,
    "a ** 0": lambda a, b: a**0,
    "2 ** small": lambda a, b: 2 ** (b.abs() & 7),
    "a ** small": lambda a, b: a ** (b & 7),
    "a + 0.5": lambda a, b: a + 0.5,
    "a * 2.5": lambda a, b: a * 2.5,
    "a + True": lambda a, b: a + True,
    "a + 100": lambda a, b: a + 100,
    "100 - a": lambda a, b: 100 - a,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: a.abs(),
    "sign": lambda a, b: a.sign(),
    "relu": lambda a, b: torch.relu(a),
    "square": lambda a, b: a.square(),
    "heaviside": torch.heaviside,
}
SHIFTS = {
    **{f"<< {by}": (lambda a, b, by=by: a << by) for by in (0, 1, 3, 7)},
    **{f">> {by}": (lambda a, b, by=by: a >> by) for by in (0, 1, 3, 7)},
    "<< tensor": lambda a, b: a << (b & 7),
    ">> tensor": lambda a, b: a >> (b & 7),
    "1 << a": lambda a, b: 1 << (a & 7),
    "negative <<": lambda a, b: a << -1,
    "negative >>": lambda a, b: a >> -1,
    "oversized <<": lambda a, b: a << 64,
    "oversized >>": lambda a, b: a >> 64,
    "width <<": lambda a, b: a << 8 * a.dtype.itemsize,
    "width >>": lambda a, b: a >> 8 * a.dtype.itemsize,
    "any tensor <<": lambda a, b: torch.bitwise_left_shift(a, b),
    "any tensor >>": lambda a, b: torch.bitwise_right_shift(a, b),
}
REDUCED = {
    "sum": lambda a: a.sum(0),
    "sum all": lambda a: a.sum(),
    "sum as it is": lambda a: a.sum(1, dtype=a.dtype),
    "sum int32": lambda a: a.sum(1, dtype=torch.int32),
    "sum float": lambda a: (a & 7).sum(1, dtype=torch.float32),
    "prod": lambda a: a.prod(1),
    "prod all": lambda a: a.prod(),
    "prod as it is": lambda a: a.prod(1, dtype=a.dtype),
    "cumsum": lambda a: a.cumsum(1),
    "cumsum int8": lambda a: a.cumsum(1, dtype=torch.int8),
    "cumprod": lambda a: a.cumprod(1),
    "amax": lambda a: a.amax(1),
    "amin": lambda a: a.amin(1),
    "max": lambda a: a.max(1),
    "min": lambda a: a.min(0),
    "argmax": lambda a: a.argmax(1),
    "argmin": lambda a: a.argmin(1),
    "any": lambda a: a.any(1),
    "all": lambda a: a.all(1),
    "any all": lambda a: a.any(),
    "count_nonzero": lambda a: a.count_nonzero(1),
    "sort": lambda a: a.sort(dim=1, stable=True),
    "topk": lambda a: a.topk(1, 1).values,
    "bincount": lambda a: torch.bincount((a & 7).flatten(), minlength=8),
    "median": lambda a: a.median(1).values,
    "mean of double": lambda a: (a & 7).double().mean(1),
    "dot": lambda a: torch.dot(a[0], a[1]),
    "mm": lambda a: a @ a.t(),
    "einsum": lambda a: torch.einsum("ij,ij->i", a, a),
}
BOOLS = {
    "sum": lambda a, b: a.sum(),
    "sum 0": lambda a, b: a.sum(0),
    "sum bool": lambda a, b: a.sum(0, dtype=torch.bool),
    "sum int32": lambda a, b: a.sum(0, dtype=torch.int32),
    "sum uint8": lambda a, b: a.expand(300, 4, 3).sum(0, dtype=torch.uint8),
    "prod": lambda a, b: a.prod(),
    "prod 0": lambda a, b: a.prod(0),
    "cumsum": lambda a, b: a.cumsum(0),
    "cumprod": lambda a, b: a.cumprod(0),
    "mean": lambda a, b: a.float().mean(),
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a, b: ~a,
    "add True": lambda a, b: a + True,
    "add 1": lambda a, b: a + 1,
    "add 1.5": lambda a, b: a + 1.5,
    "mul 2": lambda a, b: a * 2,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "max": lambda a, b: a.max(0),
    "amax": lambda a, b: a.amax(0),
    "amin": lambda a, b: a.amin(),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "any": lambda a, b: a.any(0),
    "all": lambda a, b: a.all(1),
    "div": lambda a, b: a / 2,
    "div bools": lambda a, b: a / torch.ones_like(b),
    "where": lambda a, b: torch.where(a, b, ~b),
    "where numbers": lambda a, b: torch.where(a, 1, 0),
    "where floats": lambda a, b: torch.where(a, 1.0, 0),
    "masked_fill": lambda a, b: a.masked_fill(b, True),
    "to uint8": lambda a, b: a.to(torch.uint8) - 1,
    "argmax": lambda a, b: a.int().argmax(0),
    "bool of float": lambda a, b: (a.float() - 0.5).bool(),
    "bool of uint8": lambda a, b: (a.to(torch.uint8) * 2).bool(),
    "logical_not": lambda a, b: torch.logical_not(a),
    "floor_divide": lambda a, b: a // torch.ones_like(b, dtype=torch.int32),
    "sign": lambda a, b: a.sign(),
}
ERRORS = {
    "division by a tensor with 0": lambda a, b: a // b,
    "remainder by a tensor with 0": lambda a, b: a % b,
    "fmod by a tensor with 0": torch.fmod,
    "truncated division by a tensor with 0": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "division by 0": lambda a, b: a // 0,
    "remainder by 0": lambda a, b: a % 0,
    "fmod by 0": lambda a, b: torch.fmod(a, 0),
    "truncated division by 0": lambda a, b: torch.div(a, 0, rounding_mode="trunc"),
    "1 // tensor with 0": lambda a, b: 1 // b,
    "negative power": lambda a, b: a**-1,
    "power of a tensor with negative numbers": lambda a, b: a ** (b - 1),
    "mean": lambda a, b: a.mean(),
    "neg of bool": lambda a, b: -(a > 0),
    "sub of bools": lambda a, b: (a > 0) - (b > 0),
    "in place into an int": lambda a, b: a.add_(0.5),
    "in place true division": lambda a, b: a.div_(b),
    "shift of floats": lambda a, b: torch.bitwise_and(a.float(), 1),
    "amax of nothing": lambda a, b: a[:0].amax(0),
    "argmax of nothing": lambda a, b: a[:0].argmax(),
    "max of nothing": lambda a, b: a[:0].max(),
    "median dim of nothing": lambda a, b: a[:0].median(0),
}

FLOATS = [0.0, -0.0, 0.4, -0.6, 1.5, 2.5, -1.5, 127.9, 128.0, 200.0, 255.0, 256.5, 300.0, -1.0, -129.0, -200.0, 32768.0]
HUGE = [65536.0, 70000.5, 2147483648.0, -2147483904.0, 4294967296.0, 1e10, -1e10, 9.3e18, -9.3e18, 1e30, -1e30]
NOT_NUMBERS = [float("nan"), float("inf"), float("-inf")]
TARGETS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def _conversions() -> dict[str, Case]:
    found = {}
    for source in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for name, numbers_ in (("small", FLOATS), ("huge", [*HUGE, *NOT_NUMBERS])):
            # More than a vector register, and the same in every lane and in the rest of a row.
            def inputs(source: torch.dtype = source, numbers_: list[float] = numbers_) -> tuple[Tensor]:
                return (torch.tensor(numbers_, dtype=torch.float64).to(source)[:, None].expand(-1, 19).contiguous(),)

            functions = {str(to): (lambda x, to=to: x.to(to)) for to in TARGETS}
            found[f"{str(source)[6:]}, {name}, to whole numbers"] = group(inputs, functions)
    for name, dtype in DTYPES.items():
        functions = {str(to): (lambda x, to=to: x.to(to)) for to in (*TARGETS, torch.float32, torch.float64)}
        functions |= {str(to): (lambda x, to=to: x.to(to)) for to in (torch.bfloat16, torch.float16)}
        functions["there and back"] = lambda x: x.to(torch.int8).to(torch.int64)
        functions["through float"] = lambda x: x.float().to(torch.int64)
        functions["as bytes"] = lambda x: x.view(torch.uint8)
        found[f"{name} to other types"] = group(lambda dtype=dtype: (numbers(dtype),), functions)
    return found


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for name, dtype in DTYPES.items():
        signed = dtype is not torch.uint8
        by = {
            key: f for n in ((1, 2, 3, 7, -1, -2, -3, -7) if signed else (1, 2, 3, 7, 200)) for key, f in _by(n).items()
        }
        under = {key: f for number in ((7, -7) if signed else (7, 200)) for key, f in _under(number).items()}
        arithmetic = {key: f for key, f in ARITHMETIC.items() if signed or key != "-a"}
        found |= {
            f"divisions, {name}": group(lambda dtype=dtype: divisible(dtype), DIVISIONS),
            f"divided by numbers, {name}": group(lambda dtype=dtype: (numbers(dtype)[1:],), by),
            f"numbers divided, {name}": group(lambda dtype=dtype: (numbers(dtype)[numbers(dtype) != 0],), under),
            f"arithmetic, {name}": group(lambda dtype=dtype: pairs(dtype), arithmetic),
            f"shifts, {name}": group(lambda dtype=dtype: pairs(dtype), SHIFTS),
            f"rows, {name}": group(lambda dtype=dtype: (numbers(dtype)[:16].view(4, 4),), REDUCED),
        }

    def bools() -> tuple[Tensor, Tensor]:
        a = torch.tensor([[1, 0, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)
        return a, a.flip(0)

    found["bools"] = group(bools, BOOLS)

    def with_zero():
        return (torch.tensor([4, -5, 6, 7, 8, 9]), torch.tensor([2, 0, 1, 3, 4, 5]))

    found |= {f"error: {name}": one for name, one in each(with_zero, ERRORS).items()}
    found["error: abs of bools"] = case(lambda a, b: a.abs(), bools)

    def small():
        return (torch.tensor([4, 5], dtype=torch.uint8), torch.tensor([2, 0], dtype=torch.uint8))

    found["error: uint8 by 0"] = case(lambda a, b: a // b, small)
    return found | _conversions()


CASES = _cases()
