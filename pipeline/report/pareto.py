"""The Pareto front: of many points, those that no other one beats.

Comes in: points as figures by name, and whether each figure is to be small or large. Goes out: which points are left. A
point beats another if it is no worse in any figure and better in one; so equal points are both on the front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

Goal = Literal["minimize", "maximize"]


def front(points: Sequence[Mapping[str, float]], goals: Mapping[str, Goal]) -> list[int]:
    """The indices of the points that no other one beats, in their order.

    goals   the figures that count; a point may have others. One that lacks a figure, or has NaN for it, cannot be
            compared and is on no front.
    """
    signs = {name: 1.0 if goal == "minimize" else -1.0 for name, goal in goals.items()}
    able = [
        index
        for index, point in enumerate(points)
        if all(name in point and not math.isnan(point[name]) for name in signs)
    ]
    costs = [[sign * points[index][name] for name, sign in signs.items()] for index in able]
    return [able[place] for place in unbeaten(costs)]


def unbeaten(costs: Sequence[Sequence[float]]) -> list[int]:
    """The indices of the costs, all equally many and the less the better, that no other ones beat."""
    return [index for index, cost in enumerate(costs) if not any(_beats(other, cost) for other in costs)]


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
