"""Random search: points of the space drawn alike, none twice (Bergstra and Bengio, JMLR 2012)."""

from __future__ import annotations

from random import Random

from pipeline.search.space import Point
from pipeline.search.trials import Search


class RandomSearch(Search):
    """The trial of a number is the same whatever the others gave."""

    def choose(self, number: int) -> Point | None:
        return self.space.draw(Random(f"{self.settings.seed}/{number}"), self._taken)
