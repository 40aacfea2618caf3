"""Which trials no other one beats, and which one of them wins.

Comes in: trials with their costs. Goes out: the Pareto front, an order of all trials, the winner.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.report.pareto import unbeaten
from pipeline.search.goals import Trial


def front(trials: Sequence[Trial]) -> list[Trial]:
    """The feasible trials that no feasible one beats: the Pareto front."""
    feasible = [trial for trial in trials if trial.feasible]
    return [feasible[index] for index in unbeaten([trial.costs for trial in feasible])]


def ordered(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that have a right result, the best first.

    Those that hold all limits come first, front by front (the second front is that of the trials without the first),
    each in the order of their costs; then the others, by how far they are from their limits.
    """
    left = [trial for trial in trials if trial.feasible]
    found: list[Trial] = []
    while left:
        best = front(left)
        found += sorted(best, key=_costs)
        left = [trial for trial in left if trial not in best]
    others = [trial for trial in trials if not trial.feasible and trial.costs]
    return found + sorted(others, key=lambda trial: (trial.violation, *_costs(trial)))


def winner(trials: Sequence[Trial]) -> Trial | None:
    """Of the front the trial that is best in the first objective, then in the next; None where no trial is feasible."""
    return min(front(trials), key=_costs, default=None)


def _costs(trial: Trial) -> tuple[float, ...]:
    """What trials of one front are ordered by; the earlier of two equal ones first."""
    return (*trial.costs, trial.number)
