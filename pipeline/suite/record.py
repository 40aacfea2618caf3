"""What is known of one job of a suite run: a model at one precision. Kept as one line of JSON each.

A line is written when its job has ended, in one write, so that a run that is killed loses the jobs under way and no
other; the last line of a job is the one that counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

PASSED, EAGER_FAILS = "passed", "eager"
_TUPLES = ("breaks", "peer_breaks", "eager_parts", "notes")


@dataclass(frozen=True)
class Job:
    """name: of the suite's entry; precision: as `precision=...` of the config."""

    name: str
    precision: str

    def __str__(self) -> str:
        return f"{self.name}-{self.precision}"


@dataclass(frozen=True)
class Record:
    """The outcome of a job.

    status            passed; failed: the result is wrong; error: no result, for `reason`; timeout; died;
                      eager: the model does not run without us either, so that there is nothing to be right about
    stage             the stage that was running when it ended early
    reason            why it did not pass, in one line
    graphs, breaks    of the capture; a break is a place of the model's source, `file:line: ...`, with its reason
    peer_breaks       the places, `file:line`, at which TorchDynamo breaks for Inductor; None where nobody asked
    eager_parts       parts of the model that run in eager because they could not be captured
    compared          elements that validation compared: 0 where all outputs are empty (a detector of random weights
                      that finds nothing)
    error_ratio       the largest error as a multiple of eager's own, both against float64
    fused, library    steps of the programs: kernels of ours, library calls
    latency_ms        median of one call, by engine; `speedup` against eager
    memory_bytes      peak of one call beside what was held before it, by engine
    arena_bytes       that our programs plan for intermediates
    compile_seconds   from a cold cache to the end of the first call, by engine
    seconds           of the whole job; `process_bytes` is the peak of its process
    notes             what the run had to say
    """

    name: str
    precision: str
    status: str
    stage: str = ""
    reason: str = ""
    graphs: int | None = None
    breaks: tuple[str, ...] = ()
    peer_breaks: tuple[str, ...] | None = None
    eager_parts: tuple[str, ...] = ()
    compared: int | None = None
    error_ratio: float | None = None
    fused: int | None = None
    library: int | None = None
    latency_ms: dict[str, float] = field(default_factory=dict)
    speedup: dict[str, float] = field(default_factory=dict)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    arena_bytes: int | None = None
    compile_seconds: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    process_bytes: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    notes: tuple[str, ...] = ()

    @property
    def job(self) -> Job:
        return Job(self.name, self.precision)

    @property
    def captured(self) -> bool:
        """Whether the model is in graphs of ours, with no break and no part in eager at a place where Inductor has
        neither."""
        return bool(self.graphs or self.breaks) and not self.own_breaks

    @property
    def own_breaks(self) -> list[str]:
        """The breaks and the parts in eager that Inductor does not have."""
        known = self.peer_breaks or ()
        return [stop for stop in (*self.breaks, *self.eager_parts) if ":".join(stop.split(":")[:2]) not in known]


def append(path: Path, record: Record) -> None:
    """Add a line to the file, and see it onto the disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> dict[Job, Record]:
    """The last record of each job; none where there is no file. A line that was cut off is left out."""
    known = {item.name for item in fields(Record)}
    found: dict[Job, Record] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        tuples = {key: tuple(values[key]) for key in _TUPLES if values.get(key) is not None}
        record = Record(**{key: value for key, value in {**values, **tuples}.items() if key in known})
        found[record.job] = record
    return found


def left(jobs: Iterable[Job], done: dict[Job, Record], again: bool) -> list[Job]:
    """The jobs still to do: those without a record and, if `again`, those that did not pass."""
    return [job for job in jobs if job not in done or (again and done[job].status != PASSED)]
