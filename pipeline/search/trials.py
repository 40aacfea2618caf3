"""What all searches share: trials of points of a space, no point twice, within limits of number and time.

A search is a source of jobs (`pipeline.sweep.source.Source`). What it has tried is in the sweep's folder as
`trials.json`, written before a trial is begun; so a search that is resumed tries the same points under the same
numbers, also those that were chosen by results which came in another order.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import Config
from pipeline.files import write_whole
from pipeline.report.summary import Summary
from pipeline.search.goals import Goals, Trial, read_goals, trial_of
from pipeline.search.space import Point, Space
from pipeline.sweep.record import JobRecord
from pipeline.sweep.source import Job, Rerun
from stages.ir.words import counted

JOURNAL = "trials.json"

Make = Callable[[Sequence[str]], Job]
Read = Callable[[JobRecord], Summary | None]


@dataclass(frozen=True)
class Setting:
    """What a search is made of.

    id      of the search: the same for the same space, goals, method, seed, code and device
    config  of one of its jobs
    make    from overrides to a job
    read    the figures of a job; None where it came to no right result
    before  the points that earlier commands of the same search have tried, in order
    clock   seconds, for the limit of time
    """

    id: str
    config: Config
    space: Space
    make: Make
    read: Read
    before: Sequence[Point] = ()
    clock: Callable[[], float] = field(default=time.monotonic)


class Search(ABC):
    """What chooses trials.

    points   those given out, by number; trials: what they are worth, as far as is known
    """

    rerun: Rerun = "none"
    strict = False

    def __init__(self, setting: Setting) -> None:
        self.id, self.config, self.space = setting.id, setting.config, setting.space
        self.settings = setting.config.search
        self.goals: Goals = read_goals(self.settings.goals or {})
        self.points: list[Point] = []
        self.trials: dict[int, Trial] = {}
        self._taken: set[Point] = set()
        self._before = list(setting.before)
        self._make, self._read = setting.make, setting.read
        self._clock, self._began = setting.clock, setting.clock()
        self._folder: Path | None = None
        self._ending = ""
        self._unwritten = ""

    # ---- what a method says ---------------------------------------------------------------------

    @abstractmethod
    def choose(self, number: int) -> Point | None:
        """The point of the trial `number`, which has not been tried; None where the space has no more."""

    def again(self, number: int, point: Point) -> None:  # noqa: B027  # most methods need not know
        """Hear that the trial `number` is at `point`, as it was in an earlier command."""

    def heard(self, trial: Trial) -> None:  # noqa: B027
        """Hear what a trial was worth."""

    def following(self) -> list[str] | None:
        """The overrides of the next trial; None where there is none, or none yet."""
        trials = self.settings.trials
        if trials is not None and len(self.points) >= trials:
            return None
        point = self.fresh_point()
        return None if point is None else self.space.overrides(point)

    def fresh_point(self) -> Point | None:
        """The next point that was not tried, which gets the next number; None where the space has no more."""
        number = len(self.points)
        point = self._before[number] if number < len(self._before) else None
        if point is None or point in self._taken:
            point = self.choose(number)
        else:
            self.again(number, point)
        if point is None:
            self._ending = f"the space is exhausted: all of its {len(self._taken)} points were tried"
            return None
        self.points.append(point)
        self._taken.add(point)
        return point

    # ---- a source of jobs -----------------------------------------------------------------------

    def ask(self, wanted: int) -> Sequence[Job]:
        jobs: list[Job] = []
        wanted = max(wanted, len(self._before) - len(self.points))  # those are known, and looked for all at once
        while len(jobs) < wanted and not self._over() and (chosen := self.following()) is not None:
            jobs.append(self._make(chosen))
        if jobs:
            self._write()
        return jobs

    def tell(self, number: int, record: JobRecord) -> None:
        self.trials[number] = trial_of(number, self._read(record) if record.done else None, self.goals)
        self.heard(self.trials[number])

    def expected(self) -> int:
        return len(self.points) if self._ending else self.most()

    def certain(self) -> int:
        return self.most()

    def outlook(self) -> str:
        size, trials = self.space.size, self.settings.trials
        limit = "" if trials is None else f", up to {counted(trials, 'trial')}"
        minutes = "" if self.settings.minutes is None else f", {self.settings.minutes:g} min"
        of = "" if size is None else f" of {counted(size, 'point')}"
        return f"{self.settings.method} search{of}{limit}{minutes}"

    def opened(self, folder: Path) -> None:
        self._folder = folder
        self._write()

    def stage_of(self, number: int) -> str:
        return ""

    def ending(self) -> str:
        return "; ".join(text for text in (self._ending, self._unwritten) if text)

    def _over(self) -> bool:
        """Whether there is an end to the trials."""
        minutes = self.settings.minutes
        if not self._ending and minutes is not None and self._clock() - self._began > 60 * minutes:
            self._ending = f"search.minutes={minutes:g} are over after {counted(len(self.points), 'trial')}"
        return bool(self._ending)

    def most(self) -> int:
        """At most how many points are tried."""
        known = [count for count in (self.settings.trials, self.space.size) if count is not None]
        return min(known, default=len(self.points) + 1)

    # ---- what was tried --------------------------------------------------------------------------

    def _write(self) -> None:
        if self._folder is None:
            return
        try:
            write_whole(self._folder / JOURNAL, json.dumps({"id": self.id, "points": self.points}) + "\n")
        except OSError as error:
            self._unwritten = f"what was tried could not be written down ({error.strerror})"


def tried(search: str, outputs: Path, named: Path | None = None) -> list[Point]:
    """The points that the search of this id has tried, by the longest journal under `outputs` or in `named`."""
    paths = {*outputs.glob(f"*/*/{JOURNAL}"), *([named / JOURNAL] if named is not None else ())}
    return max((_points(path, search) for path in sorted(paths)), key=len, default=[])


def _points(path: Path, search: str) -> list[Point]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return [tuple(map(str, point)) for point in values["points"]] if values["id"] == search else []
    except (OSError, ValueError, TypeError, KeyError):
        return []
