"""Hands a compiled model to the validate stage, with eager at the same precision and the float64 reference.

Comes in: the compiled model, the original and input sets. Goes out: the stage's `Validation`, whose `passed` says
whether the result is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from pipeline.compile import Session, device_in, evaluating
from pipeline.precision import eager_at
from pipeline.stages import service
from stages.ir.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.optimized import Call

Metric = Callable[[Callable[..., Any]], dict[str, float]]


def validate(
    candidate: Callable[..., Any],
    model: Callable[..., Any],
    inputs: Sequence[Call],
    session: Session,
    metric: Metric | None = None,
    more: Callable[[int], Call] | None = None,
) -> Any:
    """Compare `candidate` with `model` on every one of `inputs`.

    metric   figures of the model's own task, as a function of the candidate
    more     the inputs of a number, where there are more than `inputs`
    """
    stage = session.stage("validate")
    if stage is None:
        raise ConfigError("stages", "'validate' was left out", "add it to the list")
    config = session.config
    device = device_in(inputs)
    with evaluating(model), torch.no_grad():
        result = stage.load()(
            candidate,
            eager_at(model, config.precision, device),
            lambda sets: _reference(model, sets, device, config.validate.seed),
            inputs,
            config.validate,
            precision=config.precision.mode,
            state=dict(model.named_buffers()) if isinstance(model, torch.nn.Module) else {},
            more=more,
        )
        if metric is not None:
            result = replace(result, task_metrics=metric(candidate))
    return result


def _reference(model: Callable[..., Any], sets: Sequence[Call], device: torch.device, seed: int) -> Any:
    return service("float64_reference")(model, sets, device, seed)
