"""Runs beside each other on one page: speed with intervals, accuracy, memory, compile time, and what is best in two.

Comes in: a `Summary` for each run. Goes out: one HTML file without network. A run that is not right has no speed and is
in no plot. Which runs are on a Pareto front: those that no run of the same model beats in both figures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.files import write_whole
from pipeline.report import page, words
from pipeline.report.charts import Bar, Point, bars, scatter
from pipeline.report.page import Cell, Html, section, tag
from pipeline.report.pareto import Goal, front
from pipeline.report.summary import Summary
from stages.benchmark.statistics import Ratio, interval_of_median, quotient, ratio_of_independent_medians

Figure = Callable[[Summary], float | None]

_RIGHT = ("passed", "unvalidated")
_BESIDE = ("outputs", "job", "tracking.", "sweep.", "search.")  # settings that do not set runs apart


def write_page(path: Path, title: str, runs: Sequence[Summary], about: str = "", sections: Sequence[Html] = ()) -> None:
    """Write the page to `path`, whole or not at all; links lead to the runs' own reports, relative to it."""
    write_whole(path, render_page(title, runs, about, path.parent, sections))


def render_page(title: str, runs: Sequence[Summary], about: str, folder: Path, sections: Sequence[Html] = ()) -> str:
    """The page as text. folder: where it will lie; sections: more to show, before everything else."""
    parts = _sections(title, runs, about, folder, sections)
    return page.document(f"{title} – torchweld", parts, page.SORT)


def _sections(title: str, runs: Sequence[Summary], about: str, folder: Path, first: Sequence[Html]) -> Iterator[Cell]:
    right = sum(run.status in _RIGHT for run in runs)
    verdict = tag("span", f"{right} of {len(runs)} right", f"status {'passed' if right == len(runs) else 'failed'}")
    parts: list[Cell] = [tag("div", page.join((tag("h1", title), verdict)), "title")]
    parts += [tag("p", about, "soft")] if about else []
    parts += [tag("p", device, "soft") for device in dict.fromkeys(run.device for run in runs if run.device)]
    yield tag("header", page.join(parts))
    yield from first
    rated = [run for run in runs if run.speedup is not None]
    if rated:
        baselines = ", ".join(dict.fromkeys(run.baseline for run in rated))
        yield section("Speed", _bars(rated, f"Speed-up against {baselines}, with intervals (longer is better)"))
    yield section("Runs", tag("p", "A click on a heading sorts.", "soft small"), _table(runs, folder))
    plots = [
        _plot(*arguments)
        for arguments in (
            ("Latency and accuracy", "median ms", "error / eager's error", points(runs, _latency, _error)),
            ("Latency and memory", "median ms", "peak MiB", points(runs, _latency, _mebibytes)),
        )
        if arguments[3]
    ]
    if plots:
        text = "Lower and further left is better. Joined are the runs that no other run of their model beats in both."
        yield section("Trade-offs", tag("p", text, "soft small"), tag("div", page.join(plots), "charts"))
    loaded = [f"{run.name}: {run.load}" for run in runs if run.load]
    if loaded:
        yield section("Timed under load", page.bullets(loaded))
    missing = [_failure(run) for run in runs if run.status not in _RIGHT and run.reason]
    if missing:
        yield section("Without a right result", *missing)


def _bars(rated: Sequence[Summary], caption: str) -> Html:
    items = []
    for run in rated:
        assert run.speedup is not None
        ratio = run.speedup
        items.append(Bar(run.name, ratio.value, ratio.low, ratio.high, words.speedup(ratio), ours=ratio.low > 1))
    return bars(caption, items, mark=1.0, names=max(116, min(420, 7 * max(len(run.name) for run in rated))))


# ---- the table -----------------------------------------------------------------------------


def _table(runs: Sequence[Summary], folder: Path) -> Html:
    shown = [key for key in differences(runs) if not _told_by_names(key, runs)]
    first = runs[0] if runs else None
    figures = ("median ms", "speed-up", "× first run", "error", "memory", "compile")
    headings = ["#", "run", "status", *shown, *figures]
    rows: list[list[tuple[Cell, float | str]]] = []
    for number, run in enumerate(runs):
        versus = against(first, run) if first is not None and run is not first else None
        star = "*" if run.load else ""
        rows.append(
            [
                (str(number), number),
                (_name(run, folder), run.name),
                (tag("span", run.status, "yes" if run.status in _RIGHT else "no"), run.status),
                *(_setting(run.settings.get(key, words.NONE)) for key in shown),
                (words.milliseconds(run.latency_ms) + star, _order(run.latency_ms)),
                (words.speedup(run.speedup), _order(run.speedup.value if run.speedup else None)),
                (words.speedup(versus), _order(versus.value if versus else None)),
                (words.NONE if run.error_ratio is None else f"{run.error_ratio:.2f} ×", _order(run.error_ratio)),
                (words.size(run.memory_bytes), _order(run.memory_bytes)),
                (
                    words.seconds(run.compile_seconds) + (" warm" if run.compile_warm else ""),
                    _order(run.compile_seconds),
                ),
            ]
        )
    return page.sortable(headings, rows, right=range(len(headings) - len(figures), len(headings)))


def _told_by_names(key: str, runs: Sequence[Summary]) -> bool:
    """Whether the names of the runs, as those of a sweep, have an override that says what `key` is."""
    group = key.split(".")[0]
    return all(re.search(rf"(^|\s)\+*({re.escape(group)}|{re.escape(key)})=", run.name) for run in runs)


def _setting(value: object) -> tuple[Cell, float | str]:
    """A setting as a cell, and what it is sorted by; of a long one the beginning."""
    text = str(value)
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return short, value if isinstance(value, (int, float)) and not isinstance(value, bool) else short


_LONGEST = 40


def _order(value: float | None) -> float | str:
    """What a cell is sorted by; one without a figure comes last."""
    return "" if value is None else value


def _name(run: Summary, folder: Path) -> Html:
    """The name, as a link to the run's own report where it has one."""
    report = Path(run.folder) / "report.html"
    if not run.folder or not report.is_file():
        return tag("span", run.name)
    return page.link(Path(os.path.relpath(report, folder)).as_posix(), run.name)


def differences(runs: Sequence[Summary]) -> list[str]:
    """The settings in which runs differ, as far as they are known; those that follow from another's name left out."""
    known = [run.settings for run in runs if run.settings]
    keys = dict.fromkeys(key for settings in known for key in settings)
    found = [
        key for key in keys if not key.startswith(_BESIDE) and len({str(settings.get(key)) for settings in known}) > 1
    ]
    if "model.name" in found:  # a model's sizes, inputs and source come with its name
        found = [key for key in found if not key.startswith("model.") or key == "model.name"]
    return found if len(found) <= _MOST_COLUMNS else found[:_MOST_COLUMNS]


_MOST_COLUMNS = 6


def against(first: Summary, run: Summary) -> Ratio | None:
    """How much faster `run` is than `first`, where both ran the same model, of the same sizes, on the same device."""
    same = ("model.name", "model.path", "model.batch", "model.sequence", "model.image_size")
    if first.device != run.device or any(first.settings.get(key) != run.settings.get(key) for key in same):
        return None
    if {first.status, run.status} - set(_RIGHT):
        return None
    if first.samples_ms and run.samples_ms:
        return ratio_of_independent_medians(first.samples_ms, run.samples_ms)
    one, other = _interval(first), _interval(run)
    return quotient(one, other) if one is not None and other is not None else None


def _interval(run: Summary) -> Ratio | None:
    """The median with its interval: of the samples, or as a recipe has it."""
    return interval_of_median(run.samples_ms) if run.samples_ms else run.interval_ms


# ---- the plots -----------------------------------------------------------------------------

# Names of more points, or of more letters, would cover each other; the best points then have the numbers of the table.
_NAMED_POINTS, _NAMED_LETTERS = 8, 24


def _crowded(names: Sequence[str]) -> bool:
    return len(names) > _NAMED_POINTS or max(map(len, names), default=0) > _NAMED_LETTERS


def _plot(caption: str, x_title: str, y_title: str, placed: Sequence[tuple[int, Point]]) -> Html:
    """The points with their names, or with numbers and the names of the best ones below."""
    if not _crowded([point.name for _, point in placed]):
        return scatter(caption, x_title, y_title, [point for _, point in placed])
    numbered = [replace(point, label=str(number) if point.best else "") for number, point in placed]
    best = sorted((point.x, number, point.name) for number, point in placed if point.best)
    names = page.bullets(f"{number}: {name}" for _, number, name in best)
    return tag("div", page.join((scatter(caption, x_title, y_title, numbered), tag("div", names, "soft small"))))


def _latency(run: Summary) -> float | None:
    return run.latency_ms


def _error(run: Summary) -> float | None:
    return run.error_ratio


def _mebibytes(run: Summary) -> float | None:
    return None if run.memory_bytes is None else run.memory_bytes / 2**20


def points(runs: Sequence[Summary], x: Figure, y: Figure) -> list[tuple[int, Point]]:
    """Those of `runs` that are right and have both figures, with their numbers among all.

    `best` are the ones that no other one of their model beats.
    """
    placed = [
        (number, run, across, up)
        for number, run in enumerate(runs)
        if run.status in _RIGHT and (across := x(run)) is not None and (up := y(run)) is not None
    ]
    best: set[int] = set()
    for model in {run.model for _, run, _, _ in placed}:
        rivals = [(number, {"x": across, "y": up}) for number, run, across, up in placed if run.model == model]
        best |= {rivals[index][0] for index in front([figures for _, figures in rivals], _LOWER)}
    return [(number, Point(run.name, across, up, run.model, number in best)) for number, run, across, up in placed]


_LOWER: dict[str, Goal] = {"x": "minimize", "y": "minimize"}


def _failure(run: Summary) -> Html:
    reason, _, log = run.reason.partition("\n")
    parts: list[Cell] = [tag("p", page.join((tag("b", run.name), f" {run.status}: {reason}")))]
    parts += [tag("pre", log)] if log else []
    return page.join([*parts, tag("p", run.folder, "soft small")])
