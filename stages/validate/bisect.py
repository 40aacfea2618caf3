"""Which step went wrong first? Three runs of one computation, value by value, in order.

The pipeline hands over three iterables of (name, tensor); names are those of graph nodes, as `interpret.node_values`
gives them:

    candidate   what the compiled program computed, in the order of its steps. The pipeline fills it from
                `executable.run_steps(inputs, hook)`, whose hook(step_index, step, {buffer: tensor}) is called after
                each step; each buffer is renamed to the node it holds, viewed with that node's shape. A fused step
                gives only the values it stores; a value without a node is left out.
    eager       `node_values(graph.module, inputs, float64=False)`: its error is the measure
    reference   `node_values(graph.module, inputs, float64=True)`

The tolerance of a value is the gate's: factor times eager's own error there, plus the floor. eager and reference are
read in step and only as far as the candidate asks, so a generator does no more work than is needed. The candidate's
values must not change while they are looked at: pass a generator that looks at each step before the next one runs, or
copies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import torch

from stages.validate.config import ValidateConfig
from stages.validate.measure import Errors, errors_of, pattern_differs, wide

Named = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class WrongStep:
    """The first value out of tolerance.

    position   how many values of the candidate came before it
    name       of the value; `previous` is the last one that was right, or empty
    """

    position: int
    name: str
    previous: str
    reason: str
    errors: Errors
    eager_errors: Errors

    def __str__(self) -> str:
        after = f"; the values up to '{self.previous}' are right" if self.previous else ""
        return f"the first wrong value is '{self.name}' (number {self.position}): {self.reason}{after}"


def first_wrong_step(
    candidate: Named,
    eager: Named,
    reference: Named,
    config: ValidateConfig,
    precision: str,
    wanted: Collection[str] | None = None,
) -> WrongStep | None:
    """The first value of `candidate` that is out of tolerance; None where all are within it.

    wanted   the names that `candidate` can give, each once. Given, other values of eager and reference are dropped at
             once; else all are kept until they are asked for, which takes memory for every value of the graph.
    Raises `KeyError` naming a value of the candidate that eager and reference do not have.
    """
    known = _Walk(eager, reference, wanted)
    previous = ""
    for position, (name, value) in enumerate(candidate):
        own, truth = known.find(name)
        got = value.detach().reshape(own.shape) if value.numel() == own.numel() else value.detach()
        reason, errors, eager_errors = _judge(got, own, truth, config, precision)
        if reason:
            return WrongStep(position, name, previous, reason, errors, eager_errors)
        previous = name
    return None


class _Walk:
    """Reads eager and reference side by side, keeping what was passed over until it is asked for."""

    def __init__(self, eager: Named, reference: Named, wanted: Collection[str] | None) -> None:
        self._wanted = wanted
        self._pairs: Iterator[tuple[tuple[str, torch.Tensor], tuple[str, torch.Tensor]]] = zip(
            eager, reference, strict=True
        )
        self._kept: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def find(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        while name not in self._kept:
            pair = next(self._pairs, None)
            if pair is None:
                raise KeyError(f"bisect: neither eager nor the reference computes a value named '{name}'")
            (own_name, own), (true_name, truth) = pair
            if own_name != true_name:
                raise KeyError(f"bisect: eager computes '{own_name}' where the reference computes '{true_name}'")
            if self._wanted is None or own_name in self._wanted or own_name == name:
                self._kept[own_name] = (own.detach(), truth.detach())
        return self._kept.pop(name)


def _judge(
    got: torch.Tensor, own: torch.Tensor, truth: torch.Tensor, config: ValidateConfig, precision: str
) -> tuple[str, Errors, Errors]:
    """(what is wrong or empty, the candidate's errors, eager's errors) of one value."""
    got, own, truth = (value.cpu() for value in (got, own, truth))
    if got.shape != own.shape:
        return f"its shape is {list(got.shape)}, eager's is {list(own.shape)}", Errors(), Errors()
    if not (own.is_floating_point() or own.is_complex()):
        wrong = int(((got != own) & (own == truth.to(own.dtype))).sum())
        return (f"{wrong} of {own.numel()} elements differ from eager" if wrong else ""), Errors(), Errors()
    finite = torch.isfinite(wide(got)) & torch.isfinite(wide(own)) & torch.isfinite(wide(truth))
    errors, eager_errors = errors_of(got, truth, finite), errors_of(own, truth, finite)
    if pattern := pattern_differs(got, own):
        return pattern, errors, eager_errors
    limit = config.factor * eager_errors.relative_error + config.floor(precision).relative_error
    if not errors.relative_error <= limit:
        return f"relative error {errors.relative_error:.3g} exceeds {limit:.3g}", errors, eager_errors
    return "", errors, eager_errors
