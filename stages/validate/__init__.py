"""validate: is the candidate right? Against eager in float64, with eager's own error as the measure.

`run` takes callables and input sets and gives a `Validation`; it never decides what to do about it. Where it failed,
`bisect.first_wrong_step` finds the step that went wrong first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stages.validate.bisect import WrongStep, first_wrong_step
from stages.validate.config import Floor, ValidateConfig
from stages.validate.gate import check_call
from stages.validate.interpret import node_values
from stages.validate.measure import Errors
from stages.validate.observe import InputSet, observe
from stages.validate.reference import Reference, float64_reference
from stages.validate.result import OutputCheck, Validation

__all__ = [
    "Errors",
    "Floor",
    "InputSet",
    "OutputCheck",
    "Reference",
    "ValidateConfig",
    "Validation",
    "WrongStep",
    "first_wrong_step",
    "float64_reference",
    "node_values",
    "run",
]


def run(
    candidate: Callable[..., Any],
    eager: Callable[..., Any],
    reference: Callable[[Sequence[InputSet]], Reference],
    inputs: Sequence[InputSet],
    config: ValidateConfig,
    precision: str = "fp32",
    state: Mapping[str, torch.Tensor] | None = None,
) -> Validation:
    """Compare `candidate` with `eager` on every input set, both measured against the float64 `reference`.

    candidate   called as `candidate(*args, **kwargs)` on a fresh copy of each input set
    eager       the model as eager runs it at `precision` (under its autocast context)
    reference   called once, first, with all input sets; `float64_reference` with the model bound. The float64 copy is
                gone when it returns.
    inputs      (args, kwargs) of each call
    precision   names the floor in `config.floors`
    state       tensors of the model that a call may change (`dict(model.named_buffers())`): they must end as eager
                leaves them, and are put back after each call

    Eager's own exceptions pass through; the candidate's is a failure with its message as the reason.
    """
    config.floor(precision)
    truths = reference(inputs)
    checks: list[OutputCheck] = []
    reasons: list[str] = []
    for number, (input_set, truth) in enumerate(zip(inputs, truths.observations, strict=True)):
        seed = config.seed + number
        expected = observe(eager, input_set, state or {}, seed)
        try:
            got = observe(candidate, input_set, state or {}, seed)
        except Exception as error:
            reasons.append(f"input set {number}: the compiled model raised {type(error).__name__}: {error}")
            continue
        more_checks, more_reasons = check_call(number, got, expected, truth, config, precision)
        checks += more_checks
        reasons += more_reasons
    return Validation(precision, len(inputs), config.factor, tuple(checks), tuple(reasons), truths.notes)
