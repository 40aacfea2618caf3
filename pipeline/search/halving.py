"""Successive halving: many trials are measured cheaply, and the best of them better (Jamieson and Talwalkar 2016).

Each rung says by overrides what makes its jobs cheap, and which share of them goes on; after the last rung what is left
is measured as the command line says. A rung begins when the one before has ended, so that what goes on follows from the
seed and the results alone. Trials of a rung are ranked by the goals, as all of them are at the end; one without a right
result never goes on.
"""

from __future__ import annotations

import math

from pipeline.search.ranking import ordered
from pipeline.search.sampling import RandomSearch
from pipeline.search.space import Point
from pipeline.search.trials import Setting
from stages.ir.errors import ConfigError


class HalvingSearch(RandomSearch):
    """`search.trials` are those of the first rung."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._rungs = self.settings.rungs
        self._waiting: list[Point] = []  # of a rung after the first
        self._numbers: list[list[int]] = [[]]  # of the trials of each rung that was begun
        if self.settings.trials is None and self.space.size is None:
            raise ConfigError("search.trials", "is missing, and the space has no end", "write search.trials=20")

    def following(self) -> list[str] | None:
        rung = len(self._numbers) - 1
        point = self._point(rung)
        if point is None and self._ending:
            return None
        if point is None:
            return self.following() if self._climb(rung) else None
        self._numbers[rung].append(len(self.points) - 1)
        return self.space.overrides(point, self._rungs[rung].overrides if rung < len(self._rungs) else ())

    def _point(self, rung: int) -> Point | None:
        """The next point of a rung; None where it has no more."""
        if rung == 0:
            return self.fresh_point() if len(self.points) < self.most() else None
        if not self._waiting:
            return None
        self.points.append(self._waiting.pop(0))
        return self.points[-1]

    def _climb(self, rung: int) -> bool:
        """Begin the next rung with the best of this one; False where this one still runs, or was the last."""
        numbers = self._numbers[rung]
        if rung == len(self._rungs) or any(number not in self.trials for number in numbers):
            return False
        best = ordered([self.trials[number] for number in numbers])
        if not best:
            self._ending = f"no trial of rung {rung + 1} came to a right result"
            return False
        self._waiting = [self.points[trial.number] for trial in best[: self._share(rung, len(numbers))]]
        self._numbers.append([])
        return True

    def _share(self, rung: int, count: int) -> int:
        """How many of `count` trials of a rung go on."""
        return math.ceil(round(self._rungs[rung].keep * count, 6))

    def expected(self) -> int:
        if self._ending:
            return len(self.points)
        total = count = self.most()
        for rung in range(len(self._rungs)):
            count = self._share(rung, count)
            total += count
        return total

    def stage_of(self, number: int) -> str:
        rung = next(place for place, numbers in enumerate(self._numbers) if number in numbers)
        return "" if rung == len(self._rungs) else f"rung {rung + 1} of {len(self._rungs) + 1}"
