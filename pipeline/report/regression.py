"""Whether a run is slower than a baseline, by more than is tolerated and by more than chance.

Comes in: the `Results` of both, with an interval for each figure, and the tolerance. Goes out: a `Verdict`. Between
runs of one device latencies are compared; between devices the speed-ups over the baseline engine, which each run
measured for itself. Either way the ratio has an interval, and only one that lies beyond the tolerance as a whole is a
regression: a point alone would fail a user's CI by chance. What drifts from run to run (a machine's clock, its
neighbours) is in no interval, but it is in the time of eager as well: the speed-up is the steadier of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.recipe import Interval, Results
from pipeline.report import words
from pipeline.report.record import OURS
from stages.benchmark.statistics import Ratio, quotient
from stages.ir.errors import UserError

# With fewer rounds no interval that is free of assumptions reaches 95 %: 1 - 2 / 2^6 is the first that does.
MIN_ROUNDS = 6

By = Literal["latency", "speedup"]


@dataclass(frozen=True)
class Verdict:
    """slowdown: how many times as long as in the baseline; 1.05 is 5 % slower."""

    by: By
    slowdown: Ratio
    tolerance: float
    about: str

    @property
    def regressed(self) -> bool:
        """Whether all of the interval lies beyond the tolerance."""
        return self.slowdown.low > 1.0 + self.tolerance

    @property
    def unclear(self) -> bool:
        """Whether the interval holds regressions and others: longer measurements would tell."""
        return not self.regressed and self.slowdown.high > 1.0 + self.tolerance

    def text(self) -> str:
        """In a line."""
        outcome = "slower" if self.regressed else "not clearly slower" if self.unclear else "not slower"
        factor = words.speedup(self.slowdown)
        return f"{outcome} than the baseline by more than {self.tolerance:.1%}: {factor} × its time, by {self.about}"


def judge(baseline: Results, run: Results, by: By, tolerance: float) -> Verdict:
    """The verdict. Raises `UserError` where one of the two lacks the figures."""
    before, after = _figures(baseline, by, "the baseline"), _figures(run, by, "the run")
    if by == "latency":
        about = f"median ms ({words.milliseconds(before.value)} then, {words.milliseconds(after.value)} now)"
        return Verdict(by, quotient(_ratio(after), _ratio(before)), tolerance, about)
    if baseline.baseline != run.baseline:
        raise UserError(
            f"the baseline has speed-ups over {baseline.baseline}, the run over {run.baseline}",
            f"run it with engine.baseline={baseline.baseline}",
        )
    about = f"speed-up over {run.baseline} ({before.value:.2f} then, {after.value:.2f} now)"
    return Verdict(by, quotient(_ratio(before), _ratio(after)), tolerance, about)


def _figures(results: Results, by: By, whose: str) -> Interval:
    """What is compared. Raises `UserError` where it is not there, or was not measured often enough."""
    engine = results.engines.get(OURS)
    found = None if engine is None else engine.latency_ms if by == "latency" else engine.speedup
    if found is None:
        what = "latency" if by == "latency" else "speed-up"
        raise UserError(f"{whose} has no {what}", "it must be that of a right run with the stage benchmark and a peer")
    if results.rounds < MIN_ROUNDS:
        raise UserError(
            f"{whose} was timed in {results.rounds} rounds, too few for an interval",
            f"benchmark.min_rounds={MIN_ROUNDS} or more; benchmark=default has 20",
        )
    if not 0 < found.low <= found.value <= found.high:
        raise UserError(f"{whose} has {found.value} in [{found.low}, {found.high}], which is no interval of a time")
    return found


def _ratio(interval: Interval) -> Ratio:
    return Ratio(interval.value, interval.low, interval.high)
