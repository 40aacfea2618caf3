"""Which trials no other one beats, and which one of them wins.

Comes in: trials with their costs. Goes out: the Pareto front, an order of all trials, the winner.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.search.goals import Trial


def dominates(one: Trial, other: Trial) -> bool:
    """Whether `one` is nowhere worse than `other`, and somewhere better."""
    return one.costs != other.costs and all(a <= b for a, b in zip(one.costs, other.costs, strict=True))


def front(trials: Sequence[Trial]) -> list[Trial]:
    """The feasible trials that no feasible one dominates: the Pareto front."""
    feasible = [trial for trial in trials if trial.feasible]
    return [trial for trial in feasible if not any(dominates(other, trial) for other in feasible)]


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
