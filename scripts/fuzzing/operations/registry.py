"""The table of proposals: functions that draw one step for the graph so far."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from scripts.fuzzing.case import Step
from scripts.fuzzing.draw import Draw

Proposal = Callable[[Draw], Step]
PROPOSALS: list[Proposal] = []
WEIGHTS: list[float] = []


def proposes(weight: float) -> Callable[[Proposal], Proposal]:
    """Enter the decorated function; among all proposals it is chosen in proportion to `weight`."""

    def enter(function: Proposal) -> Proposal:
        PROPOSALS.append(function)
        WEIGHTS.append(weight)
        return function

    return enter


def choose(random: Random) -> Proposal:
    return random.choices(PROPOSALS, WEIGHTS)[0]
