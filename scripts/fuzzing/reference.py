"""What a case would give without rounding, and how far rounding can move it.

Comes in: a case. Goes out: `Samples`: its outputs, and its inputs after the call, in float64, once as they are and some
times with noise. The noise is that of floating point itself (Monte Carlo arithmetic, Parker 1997): after every step
that rounds, each element is moved at random within the step's rounding error. That error is what eager itself makes at
that step on operands nearby, at its own precision, and what those operands change, but at least one unit in the last
place. So a value that cancels,
a comparison of nearly equal numbers or a floor of nearly a whole number shows as a spread among the samples, of the
size that it has, whatever the operators are; and where nothing is ill-conditioned the spread is a few roundings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scripts.fuzzing.case import Case, Step


@dataclass(frozen=True)
class Samples:
    """By path ("output[0]", "input 1 after the call"): the exact tensor, and the noisy ones. Floating is float64."""

    exact: dict[str, Tensor]
    noisy: list[dict[str, Tensor]]


def sample(case: Case, count: int, seed: int = 0) -> Samples:
    """`count` noisy samples of `case`. Raises what eager raises where it does not run in float64."""
    with torch.no_grad():
        dtypes = [value.dtype for value in case.run(case.tensors())]
        with _default_dtype(torch.float64):
            generator = torch.Generator().manual_seed(seed)
            return Samples(_run(case, dtypes, None), [_run(case, dtypes, generator) for _ in range(count)])


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Meanwhile torch makes this type of Python floats, and of whole numbers that are divided."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _run(case: Case, dtypes: Sequence[torch.dtype], generator: torch.Generator | None) -> dict[str, Tensor]:
    inputs = case.tensors(float64=True)
    values: list[Any] = list(inputs)
    for number, step in enumerate(case.steps, len(inputs)):
        operands = [values[operand] for operand in step.operands]
        if generator is None or not step.rounds or not dtypes[number].is_floating_point:
            values.append(step.function(float64=True)(*operands))
            continue
        result, error = None, None
        if _is_composite(step):
            given = [dtypes[operand] for operand in step.operands]
            result, error = _nearby(step, operands, given, generator)
        if result is None:
            result = step.function(float64=True)(*operands)
        result = _moved(result, error, _rounding(dtypes[number]), generator, in_place=step.mutates)
        if step.mixes:
            result = torch.where(result == 0, result.copysign(_uniform(result.shape, generator)), result)
        values.append(result)
    found = {f"output[{place}]": values[number] for place, number in enumerate(case.outputs)}
    found |= {f"input {place} after the call": tensor for place, tensor in enumerate(inputs)}
    return {path: tensor.clone() for path, tensor in found.items()}


# In float64 the exact result is rounded itself, as often as eager's; its noise stands for both.
FLOAT64_ROUNDINGS = 4


def _rounding(dtype: torch.dtype) -> float:
    """The relative size of the noise on numbers of `dtype`."""
    return torch.finfo(dtype).eps * (FLOAT64_ROUNDINGS if dtype is torch.float64 else 1)


def _is_composite(step: Step) -> bool:
    """Whether a step may round within itself, by the look of it; a single + or * is right to half a unit."""
    return not step.mutates and ("(" in step.code or "@" in step.code)


def _nearby(
    step: Step, operands: Sequence[Tensor], dtypes: Sequence[torch.dtype], generator: torch.Generator
) -> tuple[Tensor | None, Tensor | None]:
    """The step on operands a rounding away, and the error that eager makes there in the types that it has.

    An algorithm is as right as can be asked if its result is the exact one of nearby operands (Wilkinson); eager may
    be better, as where it adds and multiplies at once. (None, None) where the noise brought about an error.
    """
    near = []
    for operand, dtype in zip(operands, dtypes, strict=True):
        if dtype.is_floating_point and operand.is_floating_point():
            near.append((operand * (1 + _rounding(dtype) * _uniform(operand.shape, generator))).to(dtype))
        else:
            near.append(operand)
    try:
        with _default_dtype(torch.float32):
            own = step.function()(*near)
        exact = step.function(float64=True)(*(each.double() if each.is_floating_point() else each for each in near))
    except (RuntimeError, IndexError):
        return None, None
    return exact, (own.double() - exact).abs().nan_to_num(0.0, 0.0, 0.0)


def _moved(value: Tensor, error: Tensor | None, eps: float, generator: torch.Generator, in_place: bool) -> Tensor:
    """`value`, each element moved at random by up to its error."""
    size = value.abs() * eps if error is None else (value.abs() * eps).maximum(error)
    noise = (size * _uniform(value.shape, generator)).nan_to_num(0.0, 0.0, 0.0)
    # -0.0 + 0.0 is 0.0: what is exact keeps its sign.
    moved = torch.where(noise == 0, value, value + noise)
    return value.copy_(moved) if in_place else moved


def _uniform(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
