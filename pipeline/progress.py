"""What a run says while it works: a line for each stage with its seconds, and what stages have to tell.

On a terminal the running stage is shown with its time so far; elsewhere what it is at is a line of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

# Where there is no window to fit, a table is as wide as its longest line, so that it can be pasted.
_WIDE = 160


def plain_console() -> Console:
    """A console on standard output, of the window's width, or wide where there is no window."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)


class Progress:
    """seconds: wall time of each stage, summed over the graphs that went through it.

    current: the stage that is running, or that was running when an exception began.
    """

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or plain_console()
        self.quiet = quiet
        self.seconds: dict[str, float] = {}
        self.current = ""
        self._bar: tuple[Bar, TaskID] | None = None

    @contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        """Time what runs inside as stage `name`."""
        start = time.perf_counter()
        outer, self.current = self.current, name
        with self._live(f"{name} {detail}".strip()):
            yield
        self.current = outer
        took = time.perf_counter() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + took
        self.say(f"  {name:<10} {took:7.1f} s  {detail}".rstrip())

    def detail(self, text: str) -> None:
        """What the running stage is at."""
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, description=f"{self.current}: {text}")
        else:
            self.say(f"  {self.current}: {text}")

    def waiting(self, on: bool) -> None:
        """The running stage begins (or ends) to wait until another process has timed what it times."""
        if on:
            self.say(f"{self.current}: waiting until another process has done its timing on this device")

    def say(self, text: str) -> None:
        """A line for the user, on a terminal or not; nothing if quiet."""
        if not self.quiet:
            self.console.print(text, markup=False, soft_wrap=True)

    @property
    def _lively(self) -> bool:
        return not self.quiet and self.console.is_terminal

    @contextmanager
    def _live(self, text: str) -> Iterator[None]:
        """A spinner with the time so far; only for the outermost stage, since a terminal has room for one."""
        if not self._lively or self._bar is not None:
            yield
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*columns, console=self.console, transient=True) as bar:
            self._bar = bar, bar.add_task(text)
            try:
                yield
            finally:
                self._bar = None
