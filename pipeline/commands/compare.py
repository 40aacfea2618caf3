"""Runs beside each other: a table in the terminal, and a page with plots that is one file.

python -m pipeline.commands.compare outputs/2026-11-30/11-20-00-bert-fp32 outputs/2026-11-30/11-25-00-bert-amp
python -m pipeline.commands.compare outputs/2026-11-30/22-00-00-sweep --output sweep.html      # every job of a sweep
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.table import Table

from pipeline.progress import plain_console
from pipeline.report import words
from pipeline.report.compare import against, write_page
from pipeline.report.summary import RESULTS, Summary, read_summary
from pipeline.sweep.table import comparable, read_rows
from stages.ir.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 where something named is no run."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.compare", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of sweeps")
    parser.add_argument("--output", type=Path, default=Path("compare.html"), help="the page (default: compare.html)")
    options = parser.parse_args(arguments)
    try:
        runs = [run for folder in options.runs for run in runs_in(folder)]
        write_page(options.output.absolute(), "comparison", distinct(runs))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {options.output} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    console = plain_console()
    console.print(table_of(distinct(runs)))
    console.print(f"with plots: {options.output}", markup=False, soft_wrap=True)
    return 0


def runs_in(folder: Path) -> list[Summary]:
    """The run in `folder`, or every job of the sweep there. Raises `UserError` where it is neither."""
    if folder.name == RESULTS:
        folder = folder.parent
    if (folder / "sweep.json").is_file():
        return comparable(read_rows(folder))
    return [read_summary(folder)]


def distinct(runs: Sequence[Summary]) -> list[Summary]:
    """The runs, those of one name told apart by their folders."""
    names = [run.name for run in runs]
    return [
        replace(run, name=f"{run.name} ({Path(run.folder).name})") if names.count(run.name) > 1 else run for run in runs
    ]


def table_of(runs: Sequence[Summary]) -> Table:
    """One row a run; the speed of each against the first one too, where they did the same work."""
    table = Table(box=box.MARKDOWN)
    for place, heading in enumerate(
        ("run", "status", "median ms", "speed-up", "× first run", "error", "memory", "compile")
    ):
        table.add_column(heading, justify="right" if place > 1 else "left", overflow="fold")
    for run in runs:
        table.add_row(
            run.name,
            run.status,
            words.milliseconds(run.latency_ms) + ("*" if run.load else ""),
            words.speedup(run.speedup),
            "1" if run is runs[0] else words.speedup(against(runs[0], run)),
            words.NONE if run.error_ratio is None else f"{run.error_ratio:.2f} ×",
            words.size(run.memory_bytes),
            words.seconds(run.compile_seconds) + (" warm" if run.compile_warm else ""),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
