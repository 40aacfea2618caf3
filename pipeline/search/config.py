"""What `conf/search/*.yaml` says: how the jobs of a sweep are chosen, and what is wanted of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.search.goals import read_goals
from stages.ir.errors import require


@dataclass(frozen=True)
class Rung:
    """One round of successive halving. overrides: what makes its jobs cheap; keep: the share of them that goes on."""

    overrides: tuple[str, ...]
    keep: float


@dataclass(frozen=True)
class SearchConfig:
    """Keys of `conf/search`.

    method          grid      every combination
                    random    points of the space, drawn alike
                    tpe       Optuna's tree-structured Parzen estimator (Bergstra et al. 2011): where good trials lie
                              more densely than bad ones
                    halving   successive halving (Jamieson and Talwalkar 2016): many cheap trials, of which the best
                              are measured better
    trials          at most so many (halving: in the first rung); None: as many as the space has
    minutes         of this command, after which no trial is begun; None: no limit
    seed            of the choice: the same seed chooses the same trials
    goals           metric -> minimize | maximize | {max: limit} | {min: limit}; see `pipeline.search.goals.METRICS`.
                    Where none is to be minimized or maximized, latency_ms is minimized; a grid without goals ranks
                    nothing
    startup_trials  tpe: drawn at random before it chooses
    rungs           halving: in this order; after the last one what is left is measured in full
    """

    method: Literal["grid", "random", "tpe", "halving"] = "grid"
    trials: int | None = None
    minutes: float | None = None
    seed: int = 0
    goals: dict[str, Any] | None = None
    startup_trials: int = 10
    rungs: tuple[Rung, ...] = ()

    def __post_init__(self) -> None:
        read_goals(self.goals or {})
        require(
            self.trials is None or self.trials >= 1, "search.trials", f"{self.trials} is too few", "Give 1 or more."
        )
        require(self.minutes is None or self.minutes > 0, "search.minutes", f"{self.minutes} is not above 0")
        require(0 <= self.seed < 2**32, "search.seed", f"{self.seed} is not between 0 and 2^32")
        require(self.startup_trials >= 1, "search.startup_trials", f"{self.startup_trials} is too few")
        for place, rung in enumerate(self.rungs):
            require(0 < rung.keep <= 1, f"search.rungs[{place}].keep", f"{rung.keep} is no share", "Give 0.5 for half.")
        if self.method == "grid":
            for key in ("trials", "minutes"):
                mend = "add search=random, tpe or halving"
                require(getattr(self, key) is None, f"search.{key}", "limits a search, and this is a grid", mend)
        require(
            self.method != "halving" or bool(self.rungs), "search.rungs", "is empty, and search=halving needs rungs"
        )

    @property
    def ranks(self) -> bool:
        """Whether jobs are compared by goals."""
        return self.method != "grid" or bool(self.goals)
