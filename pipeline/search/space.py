"""What a search may vary: the overrides of the command line that have several values, in Hydra's own grammar.

Comes in: parsed overrides. `fusion=none,default` and `choice(...)` are choices; `range(1, 9, 2)` the numbers that
Hydra's sweeper makes of it, the stop left out; `interval(0.0, 0.5)` all numbers between, `int(interval(1, 64))` the
whole ones, both ends included; `tag(log, interval(1e-4, 1))` draws their logarithms alike. Goes out: a `Space`, and its
points: one text a dimension, as it stands in a job's override.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer

from stages.ir.errors import ConfigError

Point = tuple[str, ...]

_TRIES = 64  # to draw a point that is not taken, before they are gone through
_DIGITS = 6  # significant ones, of a number from an interval


@dataclass(frozen=True)
class Choices:
    """One of `values`. ordered: they are numbers at equal distances."""

    key: str
    values: tuple[str, ...]
    ordered: bool = False

    @property
    def size(self) -> int | None:
        return len(self.values)

    @property
    def samples(self) -> tuple[str, ...]:
        """Values that show whether all of them can be had."""
        return (self.values[0], self.values[-1]) if self.ordered else self.values

    def value(self, place: int) -> str:
        return self.values[place]

    def draw(self, random: Random) -> str:
        return self.values[random.randrange(len(self.values))]


@dataclass(frozen=True)
class Interval:
    """A number between `low` and `high`, both included. whole: a whole one; log: its logarithm is drawn alike."""

    key: str
    low: float
    high: float
    whole: bool = False
    log: bool = False

    @property
    def size(self) -> int | None:
        return int(self.high - self.low) + 1 if self.whole else None

    @property
    def samples(self) -> tuple[str, ...]:
        return (self.text(self.low), self.text(self.high))

    def value(self, place: int) -> str:
        return self.text(self.low + place)

    def draw(self, random: Random) -> str:
        # Whole numbers have half a unit around each of them, so that the ends are as likely as the others.
        margin = 0.5 if self.whole else 0.0
        low, high = self.low - margin, self.high + margin
        drawn = math.exp(random.uniform(math.log(low), math.log(high))) if self.log else random.uniform(low, high)
        return self.text(drawn)

    def text(self, number: float) -> str:
        """`number` as it stands in an override."""
        inside = min(max(number, self.low), self.high)
        return str(round(inside)) if self.whole else repr(min(max(float(f"{inside:.{_DIGITS}g}"), self.low), self.high))


Dimension = Choices | Interval


@dataclass(frozen=True)
class Space:
    """The command line, with its dimensions. lines: its overrides in order; a number is the place of a dimension."""

    lines: tuple[str | int, ...]
    dimensions: tuple[Dimension, ...]

    @property
    def size(self) -> int | None:
        """How many points there are; None where they are without number."""
        sizes = [dimension.size for dimension in self.dimensions]
        return None if None in sizes else math.prod(size or 0 for size in sizes)

    @property
    def first(self) -> Point:
        """One point."""
        return tuple(dimension.samples[0] for dimension in self.dimensions)

    def overrides(self, point: Point, more: Sequence[str] = ()) -> list[str]:
        """The overrides of the job at `point`; one of `more` takes the place of an override of the same key."""
        lines = [self._line(line, point) for line in self.lines]
        by_key = {text.partition("=")[0].lstrip("+"): text for text in [*lines, *more]}
        return list(by_key.values())

    def _line(self, line: str | int, point: Point) -> str:
        return line if isinstance(line, str) else f"{self.dimensions[line].key}={point[line]}"

    def point(self, index: int) -> Point:
        """The point number `index`, in the order of a grid: the last dimension changes fastest. For a finite space."""
        found: list[str] = []
        for dimension in reversed(self.dimensions):
            index, place = divmod(index, dimension.size or 1)
            found.append(dimension.value(place))
        return tuple(reversed(found))

    def draw(self, random: Random, taken: Collection[Point]) -> Point | None:
        """A point that is not taken; None where all are."""
        for _ in range(_TRIES):
            point = tuple(dimension.draw(random) for dimension in self.dimensions)
            if point not in taken:
                return point
        size = self.size
        if size is None:
            return None
        start = random.randrange(size)
        points = (self.point((start + step) % size) for step in range(min(size, len(taken) + 1)))
        return next((point for point in points if point not in taken), None)


def space_of(overrides: Sequence[Override]) -> Space:
    """The space that `overrides` span. Raises `ConfigError` where an override is no dimension that can be searched."""
    lines: list[str | int] = []
    dimensions: list[Dimension] = []
    for key, override in {each.get_key_element(): each for each in overrides}.items():  # the last of a key counts
        if override.is_sweep_override():
            lines.append(len(dimensions))
            dimensions.append(_dimension(key, override.value()))
        else:
            lines.append(f"{key}={override.get_value_element_as_str()}")
    return Space(tuple(lines), tuple(dimensions))


def _dimension(key: str, value: Any) -> Dimension:
    log = "log" in getattr(value, "tags", ())
    if isinstance(value, IntervalSweep):
        return _interval(key, value, log)
    if log:
        raise ConfigError(key, "only an interval has a log scale", f"write {key}=tag(log,interval(LOW,HIGH))")
    if isinstance(value, ChoiceSweep):
        texts, ordered = [Transformer.str(each) for each in value.list], False
    elif isinstance(value, RangeSweep):
        texts, ordered = [Transformer.str(each) for each in value.range()], True
    else:
        raise ConfigError(key, "cannot be searched", f"write its values: {key}=a,b,c")
    if not texts:
        raise ConfigError(key, "has no values")
    return Choices(key, tuple(dict.fromkeys(texts)), ordered)


def _interval(key: str, value: IntervalSweep, log: bool) -> Interval:
    low, high = value.start, value.end
    whole = isinstance(low, int) and isinstance(high, int)
    if low is None or high is None or not low < high:
        raise ConfigError(key, f"{low} is not below {high}", f"write {key}=interval(LOW,HIGH)")
    if log and low <= 0:
        raise ConfigError(key, f"a log scale begins above 0, not at {low}")
    return Interval(key, low, high, whole, log)
