"""Optuna's tree-structured Parzen estimator: the next trial is where good ones lie more densely than bad ones.

Comes in: what trials were worth. Goes out: points. Every trial has a sampler of its own, seeded by its number, so that
what it chooses follows from the seed and what was heard before, also in a search that was resumed. A trial beyond a
limit, or without a right result, is told as one that breaks a constraint, which the estimator ranks behind all others.
Optuna is the extra `search`, and is imported only here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from pipeline.search.goals import Trial
from pipeline.search.space import Choices, Dimension, Point
from pipeline.search.trials import Search, Setting
from stages.ir.errors import UserError

_TRIES = 8  # of the sampler, to come to a point that was not tried
_FAR = 1e9  # how far beyond its limits a trial without a right result is said to be
_VIOLATION = "violation"


class TpeSearch(Search):
    """Raises `UserError` where Optuna is not installed."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._optuna = _optuna()
        directions = ["minimize"] * len(self.goals.objectives)
        with _quietly():
            self._study = self._optuna.create_study(directions=directions, sampler=self._sampler(0, 0))
        self._asked: dict[int, Any] = {}

    def choose(self, number: int) -> Point | None:
        for attempt in range(_TRIES):
            trial = self._ask(number, attempt)
            point = tuple(self._text(dimension, trial) for dimension in self.space.dimensions)
            if point not in self._taken:
                self._asked[number] = trial
                return point
            self._drop(trial)
        drawn = self.space.draw(Random(f"{self.settings.seed}/{number}"), self._taken)
        if drawn is not None:
            self.again(number, drawn)
        return drawn

    def again(self, number: int, point: Point) -> None:
        pairs = zip(self.space.dimensions, point, strict=True)
        self._study.enqueue_trial({dimension.key: _value(dimension, text) for dimension, text in pairs})
        self._asked[number] = self._ask(number, 0)

    def heard(self, trial: Trial) -> None:
        asked = self._asked.pop(trial.number)
        asked.set_user_attr(_VIOLATION, min(trial.violation, _FAR))
        with _quietly():
            if trial.costs:
                self._study.tell(asked, list(trial.costs))
            else:
                self._study.tell(asked, state=self._optuna.trial.TrialState.PRUNED)

    def certain(self) -> int:
        return min(self.settings.startup_trials, self.most())

    # ---- Optuna ---------------------------------------------------------------------------------

    def _ask(self, number: int, attempt: int) -> Any:
        distributions = {dimension.key: self._distribution(dimension) for dimension in self.space.dimensions}
        with _quietly():
            self._study.sampler = self._sampler(number, attempt)
            return self._study.ask(distributions)

    def _drop(self, trial: Any) -> None:
        """Forget a trial that is not run: the estimator leaves failed ones out."""
        with _quietly():
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    def _sampler(self, number: int, attempt: int) -> Any:
        return self._optuna.samplers.TPESampler(
            seed=Random(f"{self.settings.seed}/{number}/{attempt}").randrange(2**32),
            n_startup_trials=self.settings.startup_trials,
            multivariate=True,  # parameters of a compiler act together
            constant_liar=True,  # trials that run are kept away from each other
            constraints_func=_constraints,
        )

    def _distribution(self, dimension: Dimension) -> Any:
        kinds = self._optuna.distributions
        if isinstance(dimension, Choices):
            ordered = kinds.IntDistribution(0, len(dimension.values) - 1)
            return ordered if dimension.ordered else kinds.CategoricalDistribution(dimension.values)
        kind = kinds.IntDistribution if dimension.whole else kinds.FloatDistribution
        return kind(dimension.low, dimension.high, log=dimension.log)

    def _text(self, dimension: Dimension, trial: Any) -> str:
        value = trial.params[dimension.key]
        if isinstance(dimension, Choices):
            return dimension.value(value) if dimension.ordered else str(value)
        return dimension.text(value)


def _value(dimension: Dimension, text: str) -> str | int | float:
    """What Optuna calls the value that stands as `text` in an override."""
    if isinstance(dimension, Choices):
        return dimension.values.index(text) if dimension.ordered else text
    return int(text) if dimension.whole else float(text)


def _constraints(trial: Any) -> list[float]:
    return [trial.user_attrs.get(_VIOLATION, 0.0)]


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            "search=tpe needs Optuna, which is not installed",
            'pip install "torchweld[search]", or in a clone: pip install -e ".[search]"',
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def _quietly() -> Iterator[None]:
    """Without Optuna's warnings: what we ask for is experimental in version 4, and renamed in version 5."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
