"""How one talks to the process that tasks are forked from: start a task, hear what becomes of it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from pipeline.pool.task import Ended, Stop, Task, Told, Warm

_LEAVE_SECONDS = 30.0  # that the server has for killing what is left and ending itself


class PoolDied(Exception):
    """The process that jobs are forked from is gone, and its jobs with it. The message has the end of its output."""


class Pool:
    """A context manager; at its end nothing of what was started runs any more.

    modules   imported before the first task, so that no task has to
    """

    def __init__(self, modules: Iterable[str] = ()) -> None:
        self._modules = list(modules)
        self._begin()

    def _begin(self) -> None:
        self._heard: list[Told | Ended] = []  # and not yet taken
        self._connection, theirs = Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the server
        code = (
            f"import sys; sys.path[:] = {_absolute(sys.path)!r}; "
            f"from pipeline.pool.server import serve; serve({theirs.fileno()})"
        )
        self._server = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,  # Ctrl-C is for the caller, who then says what should happen
        )
        theirs.close()
        self._send(Warm(tuple(self._modules)))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def process(self) -> int:
        """The server's process id."""
        return self._server.pid

    def warm(self, modules: Iterable[str]) -> None:
        """Have `modules` imported before the next task is started. Returns at once."""
        added = tuple(modules)
        self._modules += added
        self._send(Warm(added))

    def restart(self) -> None:
        """Begin anew with another server, after `PoolDied`."""
        self.close()
        self._begin()

    def start(self, task: Task) -> None:
        self._send(task)

    def stop(self, grace_seconds: float) -> None:
        """Interrupt every task; those that do not end within the time are killed. Their `Ended` still comes."""
        self._send(Stop(grace_seconds))

    def events(self, timeout_seconds: float | None) -> list[Told | Ended]:
        """What happened since; waits for the first event, but not longer than `timeout_seconds`."""
        found, self._heard = self._heard, []
        try:
            while self._connection.poll(0 if found else timeout_seconds):
                found.append(self._connection.recv())
        except (EOFError, OSError) as error:
            if not found:
                raise PoolDied(self._last_words()) from error
        return found

    def call(self, function: str, argument: Any, timeout_seconds: float = 0.0) -> Ended:
        """Run one task, of the number -1, and wait for it. What others say meanwhile is among the next events."""
        self.start(Task(-1, function, argument, timeout_seconds=timeout_seconds))
        others: list[Told | Ended] = []
        try:
            while True:
                events = self.events(None)
                others += [event for event in events if event.number != -1]
                for event in events:
                    if isinstance(event, Ended) and event.number == -1:
                        return event
        finally:
            self._heard = others

    def close(self) -> None:
        """End everything that was started."""
        self._connection.close()
        try:
            self._server.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()  # the kernel then kills its tasks
            self._server.wait()
        self._output.close()

    def _send(self, request: object) -> None:
        try:
            self._connection.send(request)
        except OSError as error:
            raise PoolDied(self._last_words()) from error

    def _last_words(self) -> str:
        with suppress(OSError, ValueError):
            self._output.seek(0)
            lines = self._output.read().decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else "it said nothing"
        return "its output cannot be read"


def _absolute(path: list[str]) -> list[str]:
    return [str(Path(entry).absolute()) for entry in path]
