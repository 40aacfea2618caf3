"""Is a call right? Every difference between a candidate's call and eager's, with eager in float64 as the judge.

Comes in: a case and something to call. Goes out: `Difference`s, none if it is right.

Structure, type, shape, strides, memory shared and inputs written must be eager's. So must be every whole number, and
every NaN, infinity and sign of zero, except where samples of the reference (see `reference.py`) disagree on it: there,
rounding decides. A floating element may be off from the reference by twice eager's own error, and `SPREADS` times what
the samples spread, and a few roundings. Most calls agree with eager within those few roundings alone, from which the
rest follows; so only others pay for the reference.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scripts.fuzzing.case import Case, made_on
from scripts.fuzzing.reference import Samples, sample
from stages.validate.observe import Leaf, Observation, observe

# Units in the last place that an element may be off, whatever eager's error: the vector functions of two libraries
# differ by some; a half type is rounded once from float32.
ROUNDINGS = {torch.float64: 8.0, torch.float32: 8.0, torch.float16: 1.0, torch.bfloat16: 1.0}
SPREADS = 2.0
FEW_SAMPLES, MANY_SAMPLES = 6, 48


@dataclass(frozen=True)
class Difference:
    """kind: of `kinds.KINDS`; where: a path such as "output[0]", or ""; what: in words."""

    kind: str
    where: str
    what: str


class DeviceLost(Exception):
    """A kernel failed on the device (an assertion, a wild address). This process can use the device no more."""


class EagerAsserts(DeviceLost):
    """It was a kernel of eager's, so there is nothing to compare with."""


def judge(case: Case, call: Callable[..., Any], device: str = "cpu") -> list[Difference]:
    """The differences of `call(*inputs)` from eager's `case`.

    Raises `EagerAsserts`; where it is `call` that loses the device, that is a difference of the kind "crash".
    """
    inputs = (tuple(case.tensors(device)), {})
    eager, expected = _observed(case.function(), inputs, 1, device)
    if expected is not None and _lost(device):
        raise EagerAsserts(_brief(expected))
    mine, error = _observed(call, inputs, case.setting.threads, device)
    if error is not None and _lost(device):
        return [Difference("crash", "", _brief(error))]
    if eager is None or mine is None:
        return list(_error_differences(expected, error))
    found = list(_call_differences(mine, eager))
    reference = _Reference(case)
    for path in eager.leaves.keys() & mine.leaves.keys():
        found += _leaf_differences(path, mine.leaves[path], eager.leaves[path], reference)
    return found


def _lost(device: str) -> bool:
    """Whether the device is out of use for this process: an error that stays raises again at every use."""
    try:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _observed(
    call: Callable[..., Any], inputs: tuple[Any, Any], threads: int, device: str
) -> tuple[Observation | None, Exception | None]:
    def called(*args: Any) -> tuple[Any, ...]:
        with made_on(device):
            return tuple(call(*args))

    with torch.no_grad(), warnings.catch_warnings(), _threads(threads):
        warnings.simplefilter("ignore")
        try:
            return observe(called, inputs, {}, 0), None
        except Exception as error:
            return None, error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != before:
            torch.set_num_threads(before)


def _error_differences(expected: Exception | None, error: Exception | None) -> Iterator[Difference]:
    if expected is None and error is not None:
        yield Difference("error", "", _brief(error))
    elif error is None:
        yield Difference("no error", "", _brief(expected))
    elif not isinstance(error, type(expected)):
        yield Difference("other error", "", f"{_brief(error)}; eager: {_brief(expected)}")


def _brief(error: Exception | None) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _call_differences(mine: Observation, eager: Observation) -> Iterator[Difference]:
    if mine.structure != eager.structure:
        yield Difference("structure", "", f"{mine.structure}; eager: {eager.structure}")
    for path in sorted(mine.mutated ^ eager.mutated):
        yield Difference("mutation", path, "written by eager alone" if path in eager.mutated else "written")
    for one, two in sorted(mine.aliases ^ eager.aliases):
        whose = "eager's alone" if (one, two) in eager.aliases else "not eager's"
        yield Difference("alias", one, f"shares memory with {two}, {whose}")


class _Reference:
    """The samples of a case: few at first, many where those leave a difference."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.found: dict[int, Samples | None] = {}

    def samples(self, count: int) -> Samples | None:
        """None where the case does not run in float64; eager at its own precision is then the judge."""
        if count not in self.found:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.found[count] = sample(self.case, count)
            except (RuntimeError, IndexError, TypeError, ValueError):
                self.found[count] = None
        return self.found[count]


def _leaf_differences(path: str, mine: Leaf, eager: Leaf, reference: _Reference) -> Iterator[Difference]:
    if mine.dtype != eager.dtype:
        yield Difference("dtype", path, f"{mine.dtype}; eager: {eager.dtype}")
        return
    if mine.shape != eager.shape:
        yield Difference("shape", path, f"{list(mine.shape)}; eager: {list(eager.shape)}")
        return
    if _told_apart(mine) != _told_apart(eager):
        yield Difference("strides", path, f"{list(mine.strides)} of {list(mine.shape)}; eager: {list(eager.strides)}")
    if isinstance(eager.value, Tensor):
        yield from _value_differences(path, mine.value.flatten(), eager.value.flatten(), reference)


def _told_apart(leaf: Leaf) -> tuple[int, ...]:
    """The strides of dimensions with more than one element, of a tensor that has any."""
    if 0 in leaf.shape:
        return ()
    return tuple(stride for size, stride in zip(leaf.shape, leaf.strides) if size > 1)


def _value_differences(path: str, mine: Tensor, eager: Tensor, reference: _Reference) -> Iterator[Difference]:
    """Values, patterns and signs of zero; the reference is asked only where eager's own numbers do not settle it."""
    suspects = _suspects(mine, eager)
    for count in (FEW_SAMPLES, MANY_SAMPLES):
        if not any(bool(mask.any()) for mask in suspects.values()):
            return
        samples = reference.samples(count)
        if samples is None or samples.exact[path].numel() != eager.numel():
            break
        for kind, mask in suspects.items():
            if bool(mask.any()):
                suspects[kind] = mask & ~_EXCUSES[kind](mine, eager, path, samples)
    for kind, mask in suspects.items():
        if bool(mask.any()):
            place = int(mask.nonzero()[0])
            what = f"{int(mask.sum())} of {mask.numel()}, first at {place}: {mine[place]!s}; eager: {eager[place]!s}"
            yield Difference(kind, path, what)


def _suspects(mine: Tensor, eager: Tensor) -> dict[str, Tensor]:
    """By kind, a mask of the elements that are not eager's, give or take a few roundings."""
    if not eager.is_floating_point():
        return {"value": mine != eager}
    pattern = _pattern(mine) != _pattern(eager)
    a, b = mine.double(), eager.double()
    value = ~pattern & torch.isfinite(b) & ((a - b).abs() > _floor(eager, b))
    zero = (a == 0) & (b == 0) & (torch.signbit(a) != torch.signbit(b))
    return {"pattern": pattern, "value": value, "sign of zero": zero}


def _floor(eager: Tensor, size: Tensor) -> Tensor:
    """A few roundings of a number of this size; below the smallest normal number, a few of the smallest step."""
    info = torch.finfo(eager.dtype)
    return ROUNDINGS[eager.dtype] * info.eps * size.abs().clamp(min=info.smallest_normal)


def _pattern(values: Tensor) -> Tensor:
    """0 for a number, 1 for NaN, 2 and 3 for the infinities."""
    found = torch.isnan(values).to(torch.uint8)
    return found + 2 * torch.isposinf(values) + 3 * torch.isneginf(values)


# ---- what rounding excuses: each gives a mask of the elements where `mine` may differ from eager ---------------------


def _value_excused(mine: Tensor, eager: Tensor, path: str, samples: Samples) -> Tensor:
    exact = samples.exact[path].flatten()
    noisy = [each[path].flatten() for each in samples.noisy]
    if not eager.is_floating_point():
        undecided = exact != eager
        for each in noisy:
            undecided |= each != exact
        return undecided
    spread = torch.zeros_like(exact)
    for each in noisy:
        # Where a sample is no number, rounding alone can make it so, and any number will do.
        spread = spread.maximum((each - exact).abs().nan_to_num(float("inf")))
    own = (eager.double() - exact).abs().nan_to_num(float("inf"))
    allowed = 2 * own + SPREADS * spread + _floor(eager, exact)
    return (mine.double() - exact).abs().nan_to_num(float("inf")) <= allowed


def _pattern_excused(mine: Tensor, eager: Tensor, path: str, samples: Samples) -> Tensor:
    """Where the reference, in float64 or rounded to the output's type, is once as `mine` is."""
    wanted, excused = _pattern(mine), torch.zeros_like(mine, dtype=torch.bool)
    for each in (samples.exact, *samples.noisy):
        values = each[path].flatten()
        excused |= (_pattern(values) == wanted) | (_pattern(values.to(eager.dtype)) == wanted)
    return excused


def _zero_excused(mine: Tensor, eager: Tensor, path: str, samples: Samples) -> Tensor:
    """Where the reference is once no zero, or one of the sign of `mine`."""
    excused = torch.zeros_like(mine, dtype=torch.bool)
    for each in (samples.exact, *samples.noisy):
        values = each[path].flatten()
        excused |= (values != 0) | (torch.signbit(values) == torch.signbit(mine))
    return excused


_EXCUSES = {"value": _value_excused, "pattern": _pattern_excused, "sign of zero": _zero_excused}
