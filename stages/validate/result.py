"""What validation says: numbers for each output, the verdict, and its reasons in plain words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from stages.validate.measure import Errors


@dataclass(frozen=True)
class OutputCheck:
    """One output (or changed input, or changed state) on one input set, or on all of them together.

    input_set    its number; None where the values of all sets were taken for one output (`shape` begins with how many)
    limit        the largest relative and peak error that pass: factor x eager's + floor; None for what is compared
                 exactly
    mismatches   elements that had to be equal and are not; None for floating outputs
    by_size      whether it fails by the size of its error and by nothing else
    reasons      why it fails; empty where it passes
    """

    input_set: int | None
    output: str
    dtype: str
    shape: tuple[int, ...]
    errors: Errors | None = None
    eager_errors: Errors | None = None
    relative_limit: float | None = None
    peak_limit: float | None = None
    mismatches: int | None = None
    by_size: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.reasons

    @property
    def place(self) -> str:
        """Which input sets, in words."""
        return f"all {self.shape[0]} input sets" if self.input_set is None else f"input set {self.input_set}"


@dataclass(frozen=True)
class Validation:
    """The verdict over all input sets.

    reasons            every way in which it failed; empty where it passed
    notes              what to know of the comparison
    first_wrong_step   text of the bisection, where one was made
    task_metrics       figures of the model's task (with units in their names), where it has one
    """

    precision: str
    input_sets: int
    factor: float
    checks: tuple[OutputCheck, ...]
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    first_wrong_step: str = ""
    task_metrics: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.reasons

    @property
    def error_ratio(self) -> float | None:
        """The largest relative error as a multiple of eager's own; None where eager is exact everywhere."""
        ratios = [
            check.errors.relative_error / check.eager_errors.relative_error
            for check in self.checks
            if check.errors and check.eager_errors and check.eager_errors.relative_error > 0
        ]
        return max(ratios, default=None)

    @property
    def summary(self) -> str:
        """One sentence: what was compared, and how far it is from float64."""
        worst = [check.errors.relative_error for check in self.checks if check.errors is not None]
        eager = [check.eager_errors.relative_error for check in self.checks if check.eager_errors is not None]
        sets = f"{self.input_sets} input set" + ("s" if self.input_sets != 1 else "")
        if not worst:
            return f"{self.precision}, {sets}, {len(self.checks)} outputs"
        ratio = f", at most {self.error_ratio:.2f} × eager's own" if self.error_ratio is not None else ""
        return (
            f"{self.precision}, {sets}: largest relative error {max(worst):.2e} against float64 "
            f"(eager {max(eager):.2e}){ratio}; allowed {self.factor:g} × + floor"
        )

    def __str__(self) -> str:
        """The verdict in a few lines: how far from float64, beside eager, and what is wrong."""
        lines = [f"validation {'passed' if self.passed else 'FAILED'}: {self.summary}"]
        lines += [f"  {reason}" for reason in (*self.reasons, self.first_wrong_step) if reason]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain dicts, lists, numbers and text."""
        return {**asdict(self), "passed": self.passed, "error_ratio": self.error_ratio}
