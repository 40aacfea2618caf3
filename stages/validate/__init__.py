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
from stages.validate.together import Together, settled

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
    more: Callable[[int], InputSet] | None = None,
) -> Validation:
    """Compare `candidate` with `eager` on every input set, both measured against the float64 `reference`.

    candidate   called as `candidate(*args, **kwargs)` on a fresh copy of each input set
    eager       the model as eager runs it at `precision` (under its autocast context)
    reference   called with all input sets, first and again where there are more; `float64_reference` with the model
                bound. The float64 copy is gone when it returns.
    inputs      (args, kwargs) of each call
    precision   names the floor in `config.floors`
    state       tensors of the model that a call may change (`dict(model.named_buffers())`): they must end as eager
                leaves them, and are put back after each call
    more        gives the input set of a number, of the kind of `inputs`: then outputs of few numbers that fail by the
                size of their error are judged again over `config.few_sets` sets together (`together.py`)

    Eager's own exceptions pass through; the candidate's is a failure with its message as the reason.
    """
    config.floor(precision)
    checks: list[OutputCheck] = []
    reasons: list[str] = []
    together = Together(config)

    def judge(sets: Sequence[InputSet], first: int) -> tuple[str, ...]:
        truths = reference(sets)
        for number, (input_set, truth) in list(enumerate(zip(sets, truths.observations, strict=True)))[first:]:
            seed = config.seed + number
            expected = observe(eager, input_set, state or {}, seed)
            try:
                got = observe(candidate, input_set, state or {}, seed)
            except Exception as error:
                reasons.append(f"input set {number}: the compiled model raised {type(error).__name__}: {error}")
                continue
            more_checks, more_reasons = check_call(number, got, expected, truth, config, precision)
            checks.extend(more_checks)
            reasons.extend(more_reasons)
            together.add(got, expected, truth)
        return truths.notes

    sets = list(inputs)
    notes = judge(sets, 0)
    if more is not None and together.doubtful(checks) and len(sets) < config.few_sets:
        first = len(sets)
        sets += [more(number) for number in range(first, config.few_sets)]
        notes = judge(sets, first)
    if more is not None:
        few = together.doubtful(checks)
        checks = settled(checks, [together.check(output, precision) for output in few])
        notes += tuple(
            f"{output} has few numbers: its error is that of {len(sets)} input sets together" for output in few
        )
    reasons += [f"{check.place}, {check.output}: {reason}" for check in checks for reason in check.reasons]
    return Validation(precision, len(sets), config.factor, tuple(checks), tuple(reasons), notes)
