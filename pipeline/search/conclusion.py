"""What a search came to: who is on the Pareto front, who wins, and the winner's recipe; in words, files and figures.

Comes in: the rows of the sweep's table, and the search that they came from. Goes out: the rows marked, lines for the
terminal, `trials.csv` and `winner.yaml` in the sweep's folder, and what MLflow and `sweep.json` have of it. What is
no full measurement (a rung of successive halving), breaks a limit or has no right result is not on the front.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.files import write_whole
from pipeline.recipe import FILE
from pipeline.report.charts import Point, scatter
from pipeline.report.page import Html, join, section, tag
from pipeline.search import ranking
from pipeline.search.goals import METRICS, SENSES, Goals, Trial, read_goals, trial_of
from pipeline.sweep.source import Source
from pipeline.sweep.table import Row, readable

WINNER, CSV = "winner.yaml", "trials.csv"


@dataclass(frozen=True)
class Conclusion:
    """What the search came to.

    rows     of the table
    trials   those of full measurements, by number; stages: what the others are
    folder   of the sweep
    """

    rows: Sequence[Row]
    config: Config
    goals: Goals
    trials: dict[int, Trial]
    stages: dict[int, str]
    front: tuple[int, ...]
    winner: Row | None
    ending: str
    folder: Path

    # ---- in words -------------------------------------------------------------------------------

    def marked(self) -> list[Row]:
        """The rows, each with its place in the search."""
        return [
            replace(row, place=self.place(row.record.number), full=row.record.number in self.trials)
            for row in self.rows
        ]

    def place(self, number: int) -> str:
        """`winner`, `front`, the limit that is broken, or the rung; empty for a trial that others beat."""
        if number in self.stages:
            return self.stages[number]
        if self.winner is not None and number == self.winner.record.number:
            return "winner"
        return "front" if number in self.front else self.trials[number].reason

    @property
    def rule(self) -> str:
        """What the winner is."""
        first, *others = self.goals.objectives
        what = f"{_sense(self.goals.objectives[first])} {first}"
        return f"{what} of the Pareto front ({', '.join([first, *others])})" if others else what

    def lines(self) -> list[str]:
        lines = [f"search: {self.ending}"] if self.ending else []
        if self.winner is None:
            return [*lines, f"no winner: {self._why_none()}"]
        row = self.winner
        if len(self.goals.objectives) > 1:
            lines.append(f"Pareto front: {', '.join(f'[{number}]' for number in self.front)}")
        lines.append(f"winner, with the {self.rule}: [{row.record.number}] {row.label}: {self.values_of(row)}")
        if self._recipe.is_file():
            lines.append(f"the same program again: {self.command()}")
        return lines

    def values_of(self, row: Row) -> str:
        """`latency_ms 1.234, peak_mib 12`."""
        return ", ".join(f"{name} {value:.4g}" for name, value in self.trials[row.record.number].values.items())

    def _why_none(self) -> str:
        if not self.trials:
            return "no trial was measured in full"
        best = ranking.ordered(list(self.trials.values()))
        return (
            f"no trial meets the goals; the nearest, [{best[0].number}], has {best[0].reason}"
            if best
            else ("no trial came to a right result")
        )

    def command(self) -> str:
        """What makes the winner's program again."""
        assert self.winner is not None
        model = self.config.model
        trust = [f"trust=[{model.path.split(':')[0].split('.')[0]}]"] if model.path is not None else []
        return shlex.join(["python", "run.py", f"recipe={_near(self.folder / WINNER)}", *trust])

    @property
    def _recipe(self) -> Path:
        assert self.winner is not None
        return Path(self.winner.record.folder) / FILE

    # ---- in files and figures -------------------------------------------------------------------

    def write(self) -> None:
        """Write `trials.csv` and, where there is a winner, its recipe as `winner.yaml`. Raises `OSError`."""
        write_whole(self.folder / CSV, self._csv())
        if self.winner is not None and self._recipe.is_file():
            write_whole(self.folder / WINNER, self._recipe.read_text(encoding="utf-8"))

    def _csv(self) -> str:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["number", "job", "status", "place", *METRICS, "folder"])
        for row in self.rows:
            about = [row.record.number, row.label, row.record.status, self.place(row.record.number)]
            values = [None if row.summary is None else figure(row.summary) for figure in METRICS.values()]
            table.writerow([*about, *values, row.record.folder])
        return text.getvalue()

    def values(self) -> dict[str, Any]:
        """What `sweep.json` has of the search."""
        settings = self.config.search
        return {
            "method": settings.method,
            "seed": settings.seed,
            "goals": settings.goals or {},
            "objectives": {name: SENSES[sense < 0] for name, sense in self.goals.objectives.items()},
            "front": list(self.front),
            "winner": None if self.winner is None else self.winner.record.number,
            "rule": self.rule,
            "ending": self.ending,
            "trials": [
                {"number": trial.number, "values": dict(trial.values), "place": self.place(trial.number)}
                for trial in self.trials.values()
            ],
        }

    def metrics(self) -> dict[str, float]:
        """What MLflow has of it, beside the counts of jobs."""
        best = {} if self.winner is None else self.trials[self.winner.record.number].values
        return {"front.trials": float(len(self.front)), **{f"winner.{name}": value for name, value in best.items()}}

    def tags(self) -> dict[str, str]:
        found = {"search.method": self.config.search.method, "search.front": ", ".join(map(str, self.front))}
        if self.winner is not None:
            found |= {"winner": self.winner.label, "winner.job": self.winner.record.key}
        return found

    # ---- on the page ------------------------------------------------------------------------------

    def section(self) -> Html:
        """For `report.html`: what won, and the objectives two by two, or one over the trials."""
        plots = self._plots()
        parts = [tag("p", line) for line in self.lines()]
        return section("Search", *parts, *([tag("div", join(plots), "charts")] if plots else []))

    def _plots(self) -> list[Html]:
        first, *others = self.goals.objectives
        feasible = [row for row in self.rows if row.record.number in self.trials and self._feasible(row)]
        if not feasible:
            return []
        if others:
            return [
                scatter(f"{first} and {other}", first, other, [self._point(row, first, other) for row in feasible])
                for other in others
            ]
        costs = [self.trials[row.record.number].costs[0] for row in feasible]
        best = [cost < min(costs[:place], default=cost + 1) for place, cost in enumerate(costs)]
        points = [
            Point(row.label, row.record.number, self.trials[row.record.number].values[first], "", better)
            for row, better in zip(feasible, best, strict=True)
        ]
        return [scatter(f"{first} of each trial; joined: the best so far", "trial", first, points)]

    def _feasible(self, row: Row) -> bool:
        return self.trials[row.record.number].feasible

    def _point(self, row: Row, x: str, y: str) -> Point:
        values = self.trials[row.record.number].values
        return Point(row.label, values[x], values[y], "", row.record.number in self.front)


def conclude(rows: Sequence[Row], source: Source, folder: Path) -> Conclusion:
    """What the jobs of `rows`, which came from `source`, came to; `folder` is the sweep's."""
    goals = read_goals(source.config.search.goals or {})
    rows = [replace(row, label=_label(row, source.varied)) for row in rows]
    stages = {row.record.number: source.stage_of(row.record.number) for row in rows}
    trials = {
        row.record.number: trial_of(row.record.number, row.summary if row.record.done else None, goals)
        for row in rows
        if not stages[row.record.number]
    }
    best = ranking.winner(list(trials.values()))
    return Conclusion(
        rows,
        source.config,
        goals,
        trials,
        {number: stage for number, stage in stages.items() if stage},
        tuple(trial.number for trial in ranking.front(list(trials.values()))),
        next((row for row in rows if best is not None and row.record.number == best.number), None),
        source.ending(),
        folder,
    )


def _label(row: Row, varied: Collection[str]) -> str:
    """Where in the space the job is; what a rung sets beside that, its place says."""
    return readable(text for text in row.record.overrides if text.partition("=")[0] in varied) or row.label


def _sense(sign: int) -> str:
    return "least" if sign > 0 else "greatest"


def _near(path: Path) -> str:
    """`path` from the current folder, where it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
