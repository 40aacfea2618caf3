"""Every timing ever taken, in one sqlite file, by kernel hash, device and versions.

Safe for several processes at once: each record is one transaction, and a busy file is waited for. A damaged file is put
aside under another name, said in a warning, and a new one is begun: timings can be taken again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from stages.autotune.timing import Timing
from stages.ir.errors import UserError
from stages.ir.schedule import Schedule

_TABLE = """
CREATE TABLE IF NOT EXISTS timings (
    kernel TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL, schedule TEXT NOT NULL,
    seconds REAL NOT NULL, fastest REAL NOT NULL, slowest REAL NOT NULL, taken REAL NOT NULL,
    PRIMARY KEY (kernel, device, versions, schedule)
)
"""


def default_path() -> Path:
    """`torchweld/autotune.sqlite` in the user's cache folder (XDG_CACHE_HOME, else ~/.cache)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "torchweld" / "autotune.sqlite"


class Database:
    """The timings of one device under one set of versions. `path` None keeps them in memory, for tests."""

    def __init__(self, path: Path | None, device: str, versions: str) -> None:
        self._path, self._device, self._versions = path, device, versions
        self._memory = sqlite3.connect(":memory:", check_same_thread=False) if path is None else None
        try:
            self._create()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) or path is None:
                raise UserError(
                    f"autotune.database: cannot open {path}: {error}", "Name a file in a folder that can be written."
                ) from error
            aside = path.with_suffix(f".damaged-{int(time.time())}")
            path.rename(aside)
            warnings.warn(
                f"the autotune database was damaged; it lies in {aside}, and a new one is begun", stacklevel=2
            )
            self._create()

    def _create(self) -> None:
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"autotune.database: cannot make the folder {self._path.parent}: {error.strerror}",
                    "Name a file in a folder that can be written.",
                ) from error
        with self._connection() as connection:
            connection.execute(_TABLE)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        connection = self._memory or sqlite3.connect(str(self._path), timeout=60)
        try:
            with connection:
                yield connection
        finally:
            if connection is not self._memory:
                connection.close()

    def lookup(self, kernel: str) -> dict[Schedule, Timing]:
        """Every timing of the kernel with this hash."""
        query = "SELECT schedule, seconds, fastest, slowest FROM timings WHERE kernel=? AND device=? AND versions=?"
        with self._connection() as connection:
            rows = connection.execute(query, (kernel, self._device, self._versions)).fetchall()
        found = {}
        for text, *numbers in rows:
            try:
                found[Schedule.from_dict(json.loads(text))] = Timing(*numbers)
            except (TypeError, ValueError):
                continue  # a schedule of another version of torchweld, with fields that are gone
        return found

    def record(self, kernel: str, timings: dict[Schedule, Timing]) -> None:
        """Keep `timings`, in one transaction; a later timing of a schedule replaces the earlier."""
        rows = [
            (
                *(kernel, self._device, self._versions, json.dumps(schedule.to_dict(), sort_keys=True)),
                *asdict(timing).values(),
                time.time(),
            )
            for schedule, timing in timings.items()
        ]
        with self._connection() as connection:
            connection.executemany("INSERT OR REPLACE INTO timings VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
