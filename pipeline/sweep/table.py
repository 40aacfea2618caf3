"""The table of a sweep: in the terminal, and in its folder as `sweep.md`, `sweep.json` and `report.html`.

Comes in: the records of all jobs. Goes out: a row each, with figures from the `results.json` of the job where it came
to a result, and its reason and the end of its log where it did not. A figure taken beside busy processes has a star.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.files import write_whole
from pipeline.report import words
from pipeline.report.compare import write_page
from pipeline.report.page import Html
from pipeline.report.record import plain
from pipeline.report.summary import Summary, read_summary
from pipeline.schema import read as read_schema
from pipeline.sweep.board import duration
from pipeline.sweep.record import JobRecord
from pipeline.tracking import PAYLOAD
from stages.ir.errors import UserError
from stages.ir.words import counted

HEADINGS = ("#", "job", "status", "median ms", "speed-up", "error", "memory", "compile", "took")
_STYLE = {"passed": "green", "unvalidated": "yellow", "interrupted": "yellow", "not run": "dim"}
_STAR = "* timed under load: "


@dataclass(frozen=True)
class Row:
    """A job, what sets it apart from the others, and its figures; None where it came to no result.

    place   in a search: `winner`, `front`, or why it is neither
    full    False where it was measured cheaply only, to see whether it is worth more (successive halving)
    """

    record: JobRecord
    label: str
    summary: Summary | None
    place: str = ""
    full: bool = True


def rows_of(records: Sequence[JobRecord]) -> list[Row]:
    """A row for each record."""
    labels = labels_of([record.overrides for record in records], [record.name for record in records])
    return [Row(record, label, _figures(record)) for record, label in zip(records, labels, strict=True)]


def labels_of(overrides: Sequence[Sequence[str]], names: Sequence[str]) -> list[str]:
    """The overrides of each job that not all jobs have; its name where that leaves nothing."""
    common = Counter(text for job in overrides for text in set(job))
    return [
        re.sub(r"\\(.)", r"\1", " ".join(text for text in job if common[text] < len(overrides))) or name
        for job, name in zip(overrides, names, strict=True)
    ]


def _figures(record: JobRecord) -> Summary | None:
    if record.status not in ("passed", "unvalidated", "failed"):
        return None
    try:
        return read_summary(Path(record.folder))
    except UserError:
        return None


# ---- in the terminal -----------------------------------------------------------------------


def render(rows: Sequence[Row], title: str) -> RenderableType:
    """The table, then for each job without a right result the reason and the end of its log."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.MARKDOWN)
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if place == 0 or place > 2 else "left", overflow="fold")
    searched = any(row.place for row in rows)
    if searched:
        table.add_column("search", overflow="fold")
    for row in rows:
        number, label, status, *figures = cells(row)
        places = [Text(row.place, style="bold" if row.place == "winner" else "")] if searched else []
        style = _STYLE.get(row.record.status, "red")
        table.add_row(number, Text(label), Text(status, style=style), *map(Text, figures), *places)
    parts: list[RenderableType] = [table]
    parts += [Text(line, style="dim") for line in footnotes(rows)]
    for row in rows:
        if not row.record.done:
            parts += [Text(line) for line in story(row)]
    parts.append(Text(totals(rows), style="bold"))
    return Group(*parts)


def cells(row: Row) -> list[str]:
    """The row as text, in the order of `HEADINGS`."""
    record, summary = row.record, row.summary or Summary("", "")
    status = f"{record.status} (kept)" if record.kept else record.status
    star = "*" if summary.load else ""
    return [
        str(record.number),
        row.label,
        status,
        words.milliseconds(summary.latency_ms) + star,
        words.speedup(summary.speedup),
        words.NONE if summary.error_ratio is None else f"{summary.error_ratio:.2f} ×",
        words.size(summary.memory_bytes),
        words.seconds(summary.compile_seconds) + (" warm" if summary.compile_warm else ""),
        duration(record.seconds) if record.status != "not run" else words.NONE,
    ]


def footnotes(rows: Sequence[Row]) -> list[str]:
    """What the columns mean here, and what loads were behind the stars."""
    baselines = sorted({row.summary.baseline for row in rows if row.summary and row.summary.speedup})
    lines = [f"speed-up against {', '.join(baselines)}; error in units of eager's own"] if baselines else []
    loads = [f"[{row.record.number}] {row.summary.load}" for row in rows if row.summary and row.summary.load]
    return [*lines, *([_STAR + "; ".join(loads)] if loads else [])]


def story(row: Row) -> list[str]:
    """Why a job has no right result, and the end of its log."""
    record = row.record
    if record.status == "not run":
        return []
    lines = [f"[{record.number}] {row.label}: {record.status}: {record.reason}", f"    {record.folder}"]
    return [*lines, *(f"    | {line}" for line in record.log_tail)]


def totals(rows: Sequence[Row]) -> str:
    """`24 jobs: 20 passed (12 kept), 1 crashed, ...`"""
    counts = Counter(row.record.status for row in rows)
    kept = sum(row.record.kept for row in rows)
    each = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{counted(len(rows), 'job')} ({kept} kept): {each}"


def plan(records: Sequence[JobRecord], expected: int) -> RenderableType:
    """The jobs, and what would be done with each: for `sweep.dry_run`. expected: with those that are not known yet."""
    table = Table(box=box.MARKDOWN)
    for heading in ("#", "job", "would", "because", "folder"):
        table.add_column(heading, overflow="fold")
    for row in rows_of(records):
        record = row.record
        because = f"{record.status} before" if record.kept else "no result yet, or to be run again"
        would = "be skipped" if record.kept else "run"
        table.add_row(str(record.number), Text(row.label), would, because, record.folder)
    run = sum(not record.kept for record in records)
    said = f"{counted(len(records), 'job')}: {run} would run, {len(records) - run} would be skipped"
    more = expected - len(records)
    return Group(table, Text(f"{said}; then up to {more} more, chosen by what these give" if more > 0 else said))


# ---- in the folder -------------------------------------------------------------------------


class Search(Protocol):
    """What the files of a sweep have of a search; see `pipeline.search.conclusion`."""

    def values(self) -> Mapping[str, Any]: ...

    def lines(self) -> Sequence[str]: ...

    def section(self) -> Html: ...


def write(rows: Sequence[Row], folder: Path, sweep: Mapping[str, str], search: Search | None = None) -> None:
    """Write `sweep.json`, `sweep.md` and `report.html`, each whole. Raises `OSError` where that fails."""
    values: dict[str, Any] = {"sweep": dict(sweep), "jobs": [_values(row) for row in rows], "totals": totals(rows)}
    if search is not None:
        values["search"] = search.values()
    write_whole(folder / "sweep.json", json.dumps(plain(values), indent=1, allow_nan=False) + "\n")
    write_whole(folder / "sweep.md", markdown(rows, folder.name, [] if search is None else search.lines()))
    sections = [] if search is None else [search.section()]
    write_page(folder / "report.html", folder.name, comparable(rows), totals(rows), sections)


def read_rows(folder: Path) -> list[Row]:
    """The rows of the sweep whose `sweep.json` is in `folder`. Raises `UserError` where it is not one."""
    try:
        jobs = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["jobs"]
        known = {field.name for field in fields(JobRecord)}
        found = [read_schema(JobRecord, {key: job[key] for key in job if key in known}, "") for job in jobs]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder / 'sweep.json'} is no table of a sweep: {error}", "name a sweep's folder") from error
    marks = [(str(job.get("place", "")), bool(job.get("full", True))) for job in jobs]
    return [replace(row, place=place, full=full) for row, (place, full) in zip(rows_of(found), marks, strict=True)]


def _values(row: Row) -> dict[str, Any]:
    figures = asdict(row.summary) if row.summary is not None else {}
    for name in ("settings", "samples_ms"):  # they are in results.json
        figures.pop(name, None)
    search = {"place": row.place, "full": row.full}
    about = {"label": row.label, **search, "mlflow_run": _run_id(row.record), "figures": figures}
    return {**asdict(row.record), **about}


def _run_id(record: JobRecord) -> str:
    try:
        return str(json.loads((Path(record.folder) / PAYLOAD).read_text(encoding="utf-8"))["run_id"])
    except (OSError, ValueError, KeyError):
        return ""


def markdown(rows: Sequence[Row], title: str, more: Sequence[str] = ()) -> str:
    """The table, what is to be said of a search, the reasons and the ends of logs, as Markdown."""
    searched = any(row.place for row in rows)
    headings = [*HEADINGS, *(["search"] if searched else [])]
    lines = [f"# {title}", "", "| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    for row in rows:
        shown = [*cells(row), *([row.place] if searched else [])]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in shown) + " |")
    lines += ["", totals(rows), *[f"\n{line}" for line in (*footnotes(rows), *more)]]
    for row in rows:
        if not row.record.done and (about := story(row)):
            lines += ["", f"## {about[0]}", "", "```", *about[1:], "```"]
    return "\n".join(lines) + "\n"


def comparable(rows: Sequence[Row]) -> list[Summary]:
    """The rows as runs among others on a page; without the figures of cheap measurements, which are of other work."""
    return [to_compare(row) for row in rows if row.full or not row.record.done]


def to_compare(row: Row) -> Summary:
    """The row as a run among others on a page; a job without figures is there with its reason."""
    record = row.record
    if row.summary is not None:
        return replace(row.summary, name=row.label, status=record.status, reason=record.reason)
    reason = "\n".join((record.reason, *record.log_tail))
    return Summary(row.label, record.status, record.folder, record.name, record.device, reason=reason)
