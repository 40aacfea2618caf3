"""Steps that write: to inputs, to values, and to views of either."""

from __future__ import annotations

from scripts.fuzzing.case import Step
from scripts.fuzzing.draw import Draw
from scripts.fuzzing.operations.registry import proposes

UNARY = ["{0}.relu_()", "{0}.neg_()", "{0}.zero_()", "{0}.fill_(2)", "{0}.abs_()", "{0}.clamp_(-1, 1)"]
ROUNDING_UNARY = ["{0}.mul_(2)", "{0}.add_(1)", "{0}.sigmoid_()", "{0}.exp_()", "{0}.sub_(0.5)", "{0}.div_(3)"]
BINARY = ["{0}.copy_({1})", "{0}.copy_({1})", "{0}.masked_fill_({1} > 0, 3)"]
ROUNDING_BINARY = ["{0}.add_({1})", "{0}.mul_({1})", "{0}.sub_({1})", "{0}.add_({1}, alpha=2)"]


@proposes(3)
def written(draw: Draw) -> Step:
    operand = draw.value()
    rounds = draw.chance(0.5)
    return Step(draw.among(ROUNDING_UNARY if rounds else UNARY), (operand,), rounds, mutates=True)


@proposes(4)
def written_from(draw: Draw) -> Step:
    target = draw.value()
    source = draw.partner(target, same_dtype=draw.chance(0.7))
    rounds = draw.chance(0.5)
    return Step(draw.among(ROUNDING_BINARY if rounds else BINARY), (target, source), rounds, mutates=True)


@proposes(3)
def part_written(draw: Draw) -> Step:
    """A write through a slice, of a number or of another part of the same memory."""
    operand = draw.value(lambda tensor: tensor.ndim > 0 and tensor.shape[0] > 1)
    tensor = draw[operand]
    views = ["{0}[1:]", "{0}[:1]", "{0}[::2]", "{0}[..., :1]", "{0}.t()" if tensor.ndim == 2 else "{0}[0]"]
    writes = [".mul_(2)", ".fill_(1)", ".add_(1)", ".zero_()", ".copy_({0}[0] * 1)"]
    if tensor.shape[0] > 2:
        writes.append(".copy_({0}[:1])")
    return Step(draw.among(views) + draw.among(writes), (operand,), rounds=True, mutates=True)


@proposes(2)
def index_written(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: tensor.ndim > 0)
    tensor = draw[operand]
    dim = draw.dim(tensor) % tensor.ndim
    indices, number = draw.indices([2], tensor.shape[dim]), draw.number(tensor.dtype)
    first = draw.indices([2], tensor.shape[0])
    codes = [f"{{0}}.index_fill_({dim}, {indices}, {number})", f"{{0}}.index_put_(({first},), {{0}}[0] * 1)"]
    codes += [
        f"{{0}}.index_put_(({first},), {{0}}[0] * 1, accumulate=True)",
        f"{{0}}.masked_fill_({{0}} > 1, {number})",
    ]
    return Step(draw.among(codes), (operand,), rounds=True, mutates=True)
