"""What is wanted of the jobs of a search, as data: metrics to minimize or maximize, and limits that must hold.

Comes in: `search.goals`, and the figures of a job. Goes out: a `Trial`, which says what the job is worth: its values,
and how far it is from what must hold. A job without a right result is as far as can be; it never wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stages.ir.errors import ConfigError, choose, nearest, require

if TYPE_CHECKING:  # a summary knows recipes, whose config knows goals
    from pipeline.report.summary import Summary


def _error_ratio(run: Summary) -> float | None:
    """As exact as eager where eager is exact and so are we, which leaves nothing to divide by."""
    return 1.0 if run.error_ratio is None and run.relative_error == 0.0 else run.error_ratio


# The figures of the table, by the names that goals have for them.
METRICS: dict[str, Callable[[Summary], float | None]] = {
    "latency_ms": lambda run: run.latency_ms,
    "items_per_second": lambda run: run.items_per_second,
    "speedup": lambda run: None if run.speedup is None else run.speedup.value,
    "error_ratio": _error_ratio,
    "relative_error": lambda run: run.relative_error,
    "peak_mib": lambda run: None if run.memory_bytes is None else run.memory_bytes / 2**20,
    "compile_seconds": lambda run: run.compile_seconds,
}
SENSES = ("minimize", "maximize")


@dataclass(frozen=True)
class Limit:
    """`metric` must not be above `bound` (`kind` max), or not below it (`kind` min)."""

    metric: str
    kind: str
    bound: float

    def excess(self, value: float) -> float:
        """How far `value` is beyond the bound, as a share of it (as it is where the bound is 0); 0 where it holds."""
        beyond = value - self.bound if self.kind == "max" else self.bound - value
        return max(0.0, beyond / (abs(self.bound) or 1.0))

    def broken(self, value: float) -> str:
        return f"{self.metric} {value:.4g} {'>' if self.kind == 'max' else '<'} {self.bound:.4g}"


@dataclass(frozen=True)
class Goals:
    """objectives: metric -> 1 where less is better, -1 where more is; the first one decides between equals."""

    objectives: dict[str, int]
    limits: tuple[Limit, ...] = ()

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys([*self.objectives, *(limit.metric for limit in self.limits)]))


@dataclass(frozen=True)
class Trial:
    """What a job is worth.

    values     by metric, those that it has
    costs      of the objectives, in their order: less is better
    violation  0 where every limit holds, else the sum of the excesses; infinite where there is no right result
    reason     why it is not 0
    """

    number: int
    values: Mapping[str, float] = field(default_factory=dict)
    costs: tuple[float, ...] = ()
    violation: float = 0.0
    reason: str = ""

    @property
    def feasible(self) -> bool:
        return self.violation == 0.0


def read_goals(goals: Mapping[str, Any]) -> Goals:
    """`search.goals` checked. Raises `ConfigError` naming the key and the nearest metric."""
    objectives: dict[str, int] = {}
    limits: list[Limit] = []
    for metric, wanted in goals.items():
        key = f"search.goals.{metric}"
        if metric not in METRICS:
            raise ConfigError(key, "there is no such metric", nearest(metric, METRICS))
        if isinstance(wanted, Mapping):
            require(bool(wanted), key, "is empty", "Write {max: 2.0} or {min: 2.0}.")
            for kind, bound in wanted.items():
                choose(key, str(kind), ("max", "min"))
                number = isinstance(bound, (int, float)) and not isinstance(bound, bool) and math.isfinite(bound)
                require(number, f"{key}.{kind}", f"wants a number, not {bound!r}")
                limits.append(Limit(metric, str(kind), float(bound)))
        else:
            choose(key, str(wanted), (*SENSES, "{max: NUMBER}", "{min: NUMBER}"))
            objectives[metric] = 1 if wanted == SENSES[0] else -1
    return Goals(objectives or {"latency_ms": 1}, tuple(limits))


def trial_of(number: int, summary: Summary | None, goals: Goals) -> Trial:
    """What the job of these figures is worth; `summary` is None where it came to no right result."""
    if summary is None:
        return Trial(number, violation=math.inf, reason="no right result")
    found = {metric: METRICS[metric](summary) for metric in goals.metrics}
    values = {metric: value for metric, value in found.items() if value is not None}
    missing = [metric for metric, value in found.items() if value is None]
    if missing:
        return Trial(number, values, violation=math.inf, reason=f"it has no {missing[0]}")
    broken = [limit for limit in goals.limits if limit.excess(values[limit.metric]) > 0]
    return Trial(
        number,
        values,
        tuple(sense * values[metric] for metric, sense in goals.objectives.items()),
        sum(limit.excess(values[limit.metric]) for limit in broken),
        ", ".join(limit.broken(values[limit.metric]) for limit in broken),
    )
