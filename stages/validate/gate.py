"""Does the candidate's call match eager's? Every rule that an output must pass, for one input set.

Comes in: the `Observation`s of candidate, eager and float64 reference on the same inputs. Goes out: an `OutputCheck`
for each output and the reasons that belong to the call as a whole (structure, aliasing, mutation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from stages.validate.config import ValidateConfig
from stages.validate.measure import errors_of, pattern_differs, wide
from stages.validate.observe import Leaf, Observation
from stages.validate.result import OutputCheck


def check_call(
    number: int,
    candidate: Observation,
    eager: Observation,
    reference: Observation,
    config: ValidateConfig,
    precision: str,
) -> tuple[list[OutputCheck], list[str]]:
    """All checks of input set `number`, and the reasons that belong to the call as a whole."""
    checks = []
    for path, expected in eager.leaves.items():
        if path in candidate.leaves:
            # A float64 run may leave unchanged what rounding changes; then eager itself is what to compare with.
            truth = reference.leaves.get(path, expected)
            checks.append(_check_leaf(number, path, candidate.leaves[path], expected, truth, config, precision))
    return checks, [f"input set {number}: {reason}" for reason in _call_reasons(candidate, eager, config)]


def _call_reasons(candidate: Observation, eager: Observation, config: ValidateConfig) -> Iterator[str]:
    for path, kind in eager.structure.items():
        if path not in candidate.structure:
            yield f"{path} ({kind}) is missing"
        elif candidate.structure[path] != kind:
            yield f"{path} is a {candidate.structure[path]}, eager gives a {kind}"
    for path in candidate.structure.keys() - eager.structure.keys():
        yield f"{path} is one that eager does not give"
    for path in sorted(candidate.mutated - eager.mutated):
        yield f"{path} was changed by the call, eager leaves it alone"
    for path in sorted(eager.mutated - candidate.mutated):
        yield f"{path} was left alone, eager changes it"
    if config.aliases:
        for one, two in sorted(candidate.aliases - eager.aliases):
            yield f"{one} shares memory with {two}, eager's does not"
        for one, two in sorted(eager.aliases - candidate.aliases):
            yield f"{one} does not share memory with {two}, eager's does"


def _check_leaf(
    number: int, path: str, got: Leaf, eager: Leaf, truth: Leaf, config: ValidateConfig, precision: str
) -> OutputCheck:
    reasons = []
    if got.dtype != eager.dtype:
        reasons.append(f"it is {got.dtype}, eager gives {eager.dtype}")
    if got.shape != eager.shape:
        reasons.append(f"its shape is {list(got.shape)}, eager's is {list(eager.shape)}")
    elif config.strides and _distinct(got) != _distinct(eager):
        reasons.append(f"its strides are {list(got.strides)}, eager's are {list(eager.strides)}")
    values = [_as_tensor(leaf) for leaf in (got, eager, truth)]
    if reasons or any(value is None for value in values) or got.shape != truth.shape:
        if got.shape == eager.shape != truth.shape:
            reasons.append(f"its shape is {list(got.shape)}, the float64 reference's is {list(truth.shape)}")
        elif not reasons and not isinstance(eager.value, torch.Tensor) and _differs(got.value, eager.value):
            reasons.append(f"it is {got.value!r}, eager gives {eager.value!r}")
        return OutputCheck(number, path, eager.dtype, eager.shape, reasons=tuple(reasons))
    out, own, ref = (value for value in values if value is not None)
    if own.is_floating_point() or own.is_complex():
        return check_sizes(OutputCheck(number, path, eager.dtype, eager.shape), (out, own, ref), config, precision)
    return _check_exact(number, path, eager, (out, own, ref))


def check_sizes(
    about: OutputCheck,
    values: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    config: ValidateConfig,
    precision: str,
) -> OutputCheck:
    """`about` with its verdict: errors within `factor` times eager's own plus the floor, NaN and infinities where eager
    has them. values: the candidate's, eager's, the reference's."""
    out, own, ref = values
    floor = config.floor(precision)
    finite = torch.isfinite(wide(out)) & torch.isfinite(wide(own)) & torch.isfinite(wide(ref))
    errors, eager_errors = errors_of(out, ref, finite), errors_of(own, ref, finite)
    reasons = []
    limits = {}
    for name, factor in (("relative_error", config.factor), ("peak_error", config.peak_factor)):
        error, base, allowed = getattr(errors, name), getattr(eager_errors, name), getattr(floor, name)
        limits[name] = factor * base + allowed
        if not error <= limits[name]:
            reasons.append(
                f"{name.replace('_', ' ')} {error:.3g} exceeds {limits[name]:.3g}, "
                f"which is {factor:g} x eager's {base:.3g} + the floor {allowed:.1g}"
            )
    pattern = pattern_differs(out, own)
    return replace(
        about,
        errors=errors,
        eager_errors=eager_errors,
        relative_limit=limits["relative_error"],
        peak_limit=limits["peak_error"],
        by_size=bool(reasons) and not pattern,
        reasons=(*([pattern] if pattern else []), *reasons),
    )


def _check_exact(
    number: int, path: str, eager: Leaf, values: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> OutputCheck:
    """Equal to eager wherever eager is equal to the reference; where it is not, rounding decides the value."""
    out, own, ref = values
    wrong = (out != own) & (own == ref.to(own.dtype))
    mismatches = int(wrong.sum())
    reasons: tuple[str, ...] = ()
    if mismatches:
        reasons = (f"{mismatches} of {own.numel()} elements differ from eager, which agrees with float64 there",)
    return OutputCheck(number, path, eager.dtype, eager.shape, mismatches=mismatches, reasons=reasons)


def _as_tensor(leaf: Leaf) -> torch.Tensor | None:
    """The value as a tensor; a Python number as one of no dimensions; None for anything else."""
    if isinstance(leaf.value, torch.Tensor):
        return leaf.value
    if isinstance(leaf.value, (bool, int, float, complex)):
        kind = torch.complex128 if isinstance(leaf.value, complex) else torch.float64
        return torch.tensor(leaf.value, dtype=kind if isinstance(leaf.value, (float, complex)) else None, device="cpu")
    return None


def _distinct(leaf: Leaf) -> tuple[int, ...]:
    """The strides that can be told apart: those of dimensions with more than one element, in a tensor that has any."""
    if 0 in leaf.shape:
        return ()
    return tuple(stride for size, stride in zip(leaf.shape, leaf.strides) if size > 1)


def _differs(one: object, two: object) -> bool:
    """Whether two plain values differ. Values of other types have been compared by type alone."""
    plain = (str, bytes, type(None), torch.dtype, torch.device)
    return isinstance(two, plain) and one != two
