"""Outputs of few numbers, judged over many input sets as one.

Comes in: what candidate, eager and the reference gave, set by set. Goes out: one check for each output that failed by
the size of its error alone and has few numbers.

Errors of rounding are random. Over thousands of numbers their norm is steady, and an input set tells enough. Over one,
three or sixteen numbers eager is now and then ten times closer than it mostly is, and twice its error then says
nothing: drq gives two numbers, and of a hundred input sets one fails by the set although the compiled model is nearer
to float64 over all of them (0.35 times eager's error). So the values of all sets are taken for one output: the norm of
all differences by the norm of all references, and the largest of all. Sets of large values would hide what is wrong in
one of small ones, so no set alone may be far off either: by `FAR` times eager's error there, or what eager's mostly is
for values of that size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from statistics import median

import torch

from stages.validate.config import ValidateConfig
from stages.validate.gate import check_sizes
from stages.validate.measure import wide
from stages.validate.observe import Observation
from stages.validate.result import OutputCheck

# Of two errors of one size, one number each, one is 50 times the other in about 1 of 80 cases, and seldom so where the
# value is near zero, too.
FAR = 50

Values = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Together:
    """Keeps the values of outputs of at most `config.few_numbers` numbers, of every input set."""

    def __init__(self, config: ValidateConfig) -> None:
        self._config = config
        self._values: dict[str, list[Values]] = defaultdict(list)

    def add(self, candidate: Observation, eager: Observation, reference: Observation) -> None:
        """The call of one input set."""
        for path, own in eager.leaves.items():
            leaves = (candidate.leaves.get(path), own, reference.leaves.get(path, own))
            values = [leaf.value for leaf in leaves if leaf is not None and isinstance(leaf.value, torch.Tensor)]
            if len(values) == 3 and len({value.shape for value in values}) == 1 and prod(own.shape) <= self._few:
                self._values[path].append((values[0], values[1], values[2]))

    @property
    def _few(self) -> int:
        return self._config.few_numbers

    def doubtful(self, checks: Iterable[OutputCheck]) -> list[str]:
        """The outputs of few numbers that fail in an input set, in none of them by more than the size of the error."""
        failed = [check for check in checks if not check.passed]
        worse = {check.output for check in failed if not check.by_size or prod(check.shape) > self._few}
        return [output for output in dict.fromkeys(check.output for check in failed) if output not in worse]

    def check(self, output: str, precision: str) -> OutputCheck:
        """All input sets together."""
        sets = self._values[output]
        joined = [torch.cat([wide(values[who]) for values in sets]) for who in range(3)]
        own = sets[0][1]
        name = str(own.dtype).removeprefix("torch.")
        about = OutputCheck(None, output, name, (len(sets), *own.shape))
        found = check_sizes(about, (joined[0], joined[1], joined[2]), self._config, precision)
        far = self._far_off(sets, precision)
        return replace(found, reasons=(*found.reasons, *far)) if far else found

    def _far_off(self, sets: Sequence[Values], precision: str) -> list[str]:
        """What is to be said of the sets that are far off by themselves."""
        sizes = [_sizes(*values) for values in sets]
        mostly = median(eager / size for _, eager, size in sizes)
        floor = self._config.floor(precision).relative_error
        return [
            f"in input set {number} its relative error is {error / size:.3g}, more than {FAR} x eager's"
            for number, (error, eager, size) in enumerate(sizes)
            if error > FAR * max(eager, mostly * size) + floor * size
        ]


def _sizes(out: torch.Tensor, own: torch.Tensor, reference: torch.Tensor) -> tuple[float, float, float]:
    """The norms of the candidate's error, of eager's, and of the reference (1 where that is 0), of finite numbers."""
    got, eager, truth = wide(out), wide(own), wide(reference)
    among = torch.isfinite(got) & torch.isfinite(eager) & torch.isfinite(truth)
    got, eager, truth = got[among], eager[among], truth[among]
    return float((got - truth).norm()), float((eager - truth).norm()), float(truth.norm()) or 1.0


def settled(checks: Sequence[OutputCheck], joined: Sequence[OutputCheck]) -> list[OutputCheck]:
    """`checks` with those of an output replaced by the one of `joined` that is about all its input sets."""
    outputs = {check.output for check in joined}
    return [*(check for check in checks if check.output not in outputs), *joined]
