"""Where the jobs of a sweep come from: a source proposes the next ones and hears what became of each.

Comes in: records of jobs that have ended. Goes out: jobs to run. A grid knows all of its jobs from the start; what
`pipeline.search` has chooses later ones by what earlier ones gave.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pipeline.config import Config
from pipeline.recipe import Recipe
from pipeline.sweep.record import JobRecord
from stages.ir.words import counted

Rerun = Literal["failed", "all", "none"]


@dataclass(frozen=True)
class Job:
    """One job, composed and checked. fault: why it cannot be run, where it cannot; `config` is then another job's."""

    overrides: tuple[str, ...]
    config: Config
    recipe: Recipe | None
    fault: str = ""


class Source(Protocol):
    """What a sweep takes its jobs from. Jobs are numbered from 0, in the order in which they are given out.

    config   says how the sweep runs (`sweep`, `search`, `outputs`, `tracking`)
    id       of the sweep, the same when it is resumed; empty where the jobs themselves say it
    rerun    which of the jobs that ran before run again, where `sweep.rerun` does not say
    strict   whether a job that is not right makes the sweep fail
    varied   the keys that tell one job from another; none where the jobs themselves say it
    """

    config: Config
    id: str
    rerun: Rerun
    strict: bool
    varied: Collection[str]

    def ask(self, wanted: int) -> Sequence[Job]:
        """The next jobs, if possible `wanted` of them. None while it waits to be told of others, or at its end."""

    def tell(self, number: int, record: JobRecord) -> None:
        """Hear how the job of that number ended, now or in an earlier sweep."""

    def expected(self) -> int:
        """How many jobs there will be in all, as far as can be told."""

    def certain(self) -> int:
        """How many jobs there will be whatever they give."""

    def outlook(self) -> str:
        """What there is to do, in words."""

    def opened(self, folder: Path) -> None:
        """Hear that the sweep has a folder."""

    def stage_of(self, number: int) -> str:
        """What a job is where it is not a full measurement: `rung 1 of 3`."""

    def ending(self) -> str:
        """Why there are no more jobs, where that is to be said."""


class Grid:
    """All jobs at once: what Hydra's sweeper expands."""

    id = ""
    rerun: Rerun = "failed"
    strict = True
    varied: Collection[str] = ()

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.config = jobs[0].config
        self._left = list(jobs)
        self._count = len(jobs)

    def ask(self, wanted: int) -> Sequence[Job]:
        jobs, self._left = self._left, []
        return jobs

    def tell(self, number: int, record: JobRecord) -> None:
        pass

    def expected(self) -> int:
        return self._count

    def certain(self) -> int:
        return self._count

    def outlook(self) -> str:
        return counted(self._count, "job")

    def opened(self, folder: Path) -> None:
        pass

    def stage_of(self, number: int) -> str:
        return ""

    def ending(self) -> str:
        return ""
