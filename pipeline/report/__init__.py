"""What is left of a run: `results.json`, `report.html`, sources, memory plans, and a table in the terminal.

All of it is made from one `RunRecord`, which `record_of` makes of the pipeline's `Result`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from pipeline.report.collect import record_of
from pipeline.report.html import render_html, write_html
from pipeline.report.program import record_program
from pipeline.report.record import (
    OURS,
    DecisionRecord,
    PlanRecord,
    ProgramRecord,
    RunRecord,
    StepRecord,
    write_files,
    write_results,
)
from pipeline.report.terminal import print_report, render

if TYPE_CHECKING:
    from pipeline.result import Result

__all__ = [
    "OURS",
    "DecisionRecord",
    "PlanRecord",
    "ProgramRecord",
    "RunRecord",
    "StepRecord",
    "print_report",
    "record_of",
    "record_program",
    "render",
    "render_html",
    "show",
    "write",
    "write_files",
    "write_html",
    "write_record",
    "write_results",
]


def write(result: Result) -> None:
    """Write every file of the report into the run's folder."""
    write_record(record_of(result), Path(result.folder))


def write_record(record: RunRecord, folder: Path) -> None:
    """Write `results.json`, `report.html`, `sources/` and the pictures of the memory plans into `folder`."""
    write_results(record, folder)
    write_files(record, folder)
    write_html(record, folder)


def show(result: Result, console: Console | None = None) -> None:
    """Print the report of the run."""
    print_report(record_of(result), console)
