"""What is known of a job of a sweep, and where it is kept: `job.json` in the job's folder.

A job that came to a result writes its own record, right after its results and before anything else can go wrong; the
sweep writes it for one that did not. The figures are not in it: they stand in `results.json` beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pipeline.files import write_whole
from pipeline.report.record import plain
from pipeline.schema import read as read_schema
from stages.ir.errors import ConfigError

FILE = "job.json"
FORMAT = 1

# How a job can end. Those in DONE gave a right result and are not run again.
STATUSES = ("passed", "unvalidated", "failed", "error", "crashed", "timeout", "memory", "interrupted", "not run")
DONE = ("passed", "unvalidated")


@dataclass(frozen=True)
class JobRecord:
    """One job.

    number      its place in the sweep, from 0
    name        of its folder, such as bert-amp; overrides: those of this job
    key, config_hash, code, device   see `pipeline.sweep.identity.Identity`
    status      passed, unvalidated (validation left out), failed (the result is wrong), error (raised), crashed (ended
                by a signal), timeout, memory (over the limit), interrupted, not run
    reason      why it is not right, in a line; empty where it is
    folder      where its results and its log are; absolute
    started     seconds since 1970; seconds: how long it took, less waiting for other jobs' timings
    peak_mib    the most resident memory that its largest process had
    log_tail    the end of its log, where it did not come to a result
    kept        whether this is a result of an earlier sweep
    """

    number: int
    name: str
    overrides: tuple[str, ...]
    key: str
    config_hash: str = ""
    code: str = ""
    device: str = ""
    status: str = "not run"
    reason: str = ""
    folder: str = ""
    started: float = 0.0
    seconds: float = 0.0
    peak_mib: float = 0.0
    log_tail: tuple[str, ...] = ()
    kept: bool = False
    format: int = FORMAT

    @property
    def done(self) -> bool:
        return self.status in DONE


def write(record: JobRecord, folder: Path | None = None) -> None:
    """Write `record` into its folder, or `folder`, whole and on the disk. Raises `OSError` where that fails."""
    write_whole((folder or Path(record.folder)) / FILE, json.dumps(plain(asdict(record)), indent=1) + "\n")


def read(path: Path) -> JobRecord | None:
    """The record in the file `path`; None where there is none, or it is not one of this version."""
    try:
        record = read_schema(JobRecord, json.loads(path.read_text(encoding="utf-8")), "")
    except (OSError, ValueError, ConfigError):
        return None
    known = record.format == FORMAT and record.status in STATUSES
    return replace(record, folder=record.folder if record.kept else str(path.parent)) if known else None


def earlier(outputs: Path, sweep: Path | None = None) -> dict[str, JobRecord]:
    """By key, what is known of each job: its newest right result, or else its newest record.

    outputs   where sweeps are, by date and time; sweep: the folder of one that is elsewhere
    """
    paths = {*outputs.glob(f"*/*/*/{FILE}"), *(sweep.absolute().glob(f"*/{FILE}") if sweep is not None else ())}
    records = [read(path) for path in paths]
    found: dict[str, JobRecord] = {}
    for record in sorted((record for record in records if record is not None and not record.kept), key=_worth):
        found[record.key] = record
    return found


def _worth(record: JobRecord) -> tuple[bool, float]:
    return record.done, record.started


def to_keep(record: JobRecord | None, rerun: Literal["failed", "all", "none"]) -> bool:
    """Whether a job of which `record` is known is skipped."""
    if record is None or rerun == "all" or record.status in ("interrupted", "not run"):
        return False
    return record.done or rerun == "none"


def tail(log: Path, lines: int) -> tuple[str, ...]:
    """The last lines of a job's log; of one that was killed where it hung or crashed, the place where that was."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - (64 << 10)))
            text = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    text = [line.rstrip() for line in text if line.strip()]
    # faulthandler writes the innermost call first: the first lines of its last block say where it is.
    blocks = [place for place, line in enumerate(text) if "most recent call first" in line]
    return tuple(_some(text[blocks[-1] :][:lines] if blocks else text[len(text) - lines :] if lines else []))


def _some(lines: Iterable[str], width: int = 400) -> Iterable[str]:
    return (line if len(line) <= width else line[:width] + " ..." for line in lines)
