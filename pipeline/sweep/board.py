"""What a sweep shows while it works: how many jobs are done, running and failed, and about how long it will take.

On a terminal a few lines that are kept up to date; elsewhere a line for each job that ends. No thread of its own: the
sweep calls `update` as it goes round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline.sweep.record import JobRecord


@dataclass
class _Running:
    name: str
    since: float = field(default_factory=time.monotonic)
    stage: str = "starting"


class Board:
    """A context manager; on a terminal its lines are gone at the end.

    total   jobs of the sweep; kept: results of earlier sweeps among them; at_once: how many may run at once
    """

    def __init__(self, console: Console, total: int = 0, kept: int = 0, at_once: int = 1) -> None:
        self._console = console
        self._total, self._kept, self._at_once = total, kept, at_once
        self._running: dict[int, _Running] = {}
        self._ended: list[JobRecord] = []
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def expect(self, total: int, kept: int) -> None:
        """How many jobs there are by now, and how many of them have a result already."""
        self._total, self._kept = total, kept

    def started(self, record: JobRecord) -> None:
        self._running[record.number] = _Running(record.name)

    def stage(self, number: int, name: str) -> None:
        if number in self._running:
            self._running[number].stage = name

    def ended(self, record: JobRecord) -> None:
        self._running.pop(record.number, None)
        self._ended.append(record)
        when = "before (kept)" if record.kept else f"after {record.seconds:.1f} s"
        what = f"{record.status} {when}" + (f": {record.reason}" if record.reason else "")
        text = f"[{record.number}] {record.name} {what}"
        if self._live is None:
            text = f"{text}  ({self.summary()})"
        self._console.print(text, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def update(self) -> None:
        """Show how things are now."""
        if self._live is not None:
            now = time.monotonic()
            lines = [
                f"  [{number}] {job.name}: {job.stage}, {duration(now - job.since)}"
                for number, job in self._running.items()
            ]
            self._live.update(Text("\n".join([self.summary(), *lines])), refresh=True)

    def summary(self) -> str:
        """`7 of 24 done, 2 running, 1 failed, about 5 min left`."""
        failed = sum(not record.done for record in self._ended)
        left = seconds_left(
            [record.seconds for record in self._ended if not record.kept],
            self._total - self._kept - len(self._ended),
            self._at_once,
        )
        parts = [
            f"{self._kept + len(self._ended)} of {self._total} done",
            f"{len(self._running)} running",
            f"{failed} failed",
        ]
        return ", ".join(parts if left is None else [*parts, f"about {duration(left)} left"])


def seconds_left(took: Sequence[float], jobs_left: int, at_once: int) -> float | None:
    """How long `jobs_left` jobs will take if they are like those that took so many seconds; None before the first."""
    return sum(took) / len(took) * jobs_left / at_once if took else None


def duration(seconds: float) -> str:
    """`42 s`, `7 min`, `3.2 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"
