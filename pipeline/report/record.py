"""`RunRecord`: everything there is to say of one run. The pipeline fills it; terminal, HTML, JSON and MLflow read it.

A run whose validation failed has no speed: `benchmark_to_show` is then None, and every reader goes through it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.files import write_whole
from pipeline.inputs import InputsRecord
from stages.benchmark.result import Benchmark
from stages.validate.result import Validation

OURS = "torchweld"

# Keys of the config that cannot change a result: where files go, where runs are logged, how a sweep comes to its jobs.
BESIDE_THE_RESULT = ("outputs", "job", "tracking", "sweep", "search")


@dataclass(frozen=True)
class StepRecord:
    """One step of a program.

    kind          "launch" (a kernel of ours) or "extern" (a torch operator)
    label         what it computes; `kernel` is the hash of a launch's kernel, or empty
    origin        `file:line` of the user's source, `code` that line, `module` the path inside the model
    reason        why an extern is no kernel of ours; for a launch, how many operations are in it
    bytes_moved   device-memory traffic at the least, each element once
    flop          floating-point operations; 0 where they are not counted
    dtype         element type of its arithmetic, as the roofline names it
    median_ms     measured by itself; None where it was not
    """

    index: int
    kind: str
    label: str
    origin: str = ""
    code: str = ""
    module: str = ""
    reason: str = ""
    kernel: str = ""
    bytes_moved: int = 0
    flop: int = 0
    dtype: str = "float32"
    median_ms: float | None = None


@dataclass(frozen=True)
class DecisionRecord:
    """One fusion made or refused; see `stages.ir.program.Decision`."""

    producer: str
    consumer: str
    fused: bool
    rule: str
    reason: str
    origin: str = ""
    bytes_saved: int = 0


@dataclass(frozen=True)
class PlanRecord:
    """The arena, in bytes; see `stages.ir.program.ArenaPlan`. `svg` is its picture, or empty."""

    arena_bytes: int
    lower_bound_bytes: int
    unshared_bytes: int
    strategy: str
    svg: str = ""


@dataclass(frozen=True)
class ProgramRecord:
    """One compiled graph; a model with graph breaks has several. traffic_* as in `stages.ir.program.Program`."""

    name: str
    steps: tuple[StepRecord, ...] = ()
    decisions: tuple[DecisionRecord, ...] = ()
    plan: PlanRecord | None = None
    traffic_bytes: int = 0
    traffic_unfused_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def launches(self) -> int:
        return sum(step.kind == "launch" for step in self.steps)

    @property
    def externs(self) -> int:
        return len(self.steps) - self.launches


@dataclass
class RunRecord:
    """One run.

    name            of the run, such as "bert-amp"
    command         to paste, to run it again
    started         ISO 8601 with the offset from UTC; `seconds` the whole run
    config          resolved, nested; versions: package -> version; device: what the machine is, in words by topic
    stage_seconds   wall time by stage, in order
    inputs          what the model was called with; None where the run did not come so far
    validation      None where the stage was left out, or not reached: there is then no verdict
    partial         why the run ended early (Ctrl-C, an error), or empty
    programs        one for each graph
    notes           what stages had to say, in order
    sweep           of which this run is a job: `id`, the same when the sweep is resumed, and `job`, its key; else empty
    sources         generated sources, file name -> text; written to `sources/`, and not in `results.json`
    """

    name: str
    command: str = ""
    started: str = ""
    seconds: float = 0.0
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    device: dict[str, str] = field(default_factory=dict)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    inputs: InputsRecord | None = None
    validation: Validation | None = None
    benchmark: Benchmark | None = None
    programs: list[ProgramRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    partial: str = ""
    sweep: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """ "failed" (validation), "partial" (ended early), "passed", or "unvalidated" (the stage was left out)."""
        if self.validation is not None and not self.validation.passed:
            return "failed"
        if self.partial:
            return "partial"
        return "passed" if self.validation is not None else "unvalidated"

    @property
    def benchmark_to_show(self) -> Benchmark | None:
        """The benchmark, unless validation failed: a wrong result has no speed."""
        return None if self.status == "failed" else self.benchmark

    @property
    def config_hash(self) -> str:
        """See `config_hash`."""
        return config_hash(self.config)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, and no timing where validation failed."""
        shown = self.benchmark_to_show
        values: dict[str, Any] = {
            "name": self.name,
            "status": self.status,
            "partial": self.partial,
            "command": self.command,
            "started": self.started,
            "seconds": self.seconds,
            "config": self.config,
            "config_hash": self.config_hash,
            "versions": self.versions,
            "device": self.device,
            "stage_seconds": self.stage_seconds,
            "inputs": None if self.inputs is None else asdict(self.inputs),
            "validation": None if self.validation is None else self.validation.to_dict(),
            "benchmark": None if shown is None else shown.to_dict(),
            "programs": [asdict(program) for program in self.programs],
            "notes": self.notes,
            "sweep": self.sweep,
            "sources": sorted(self.sources),
        }
        if self.status == "failed":
            for program in values["programs"]:
                for step in program["steps"]:
                    step["median_ms"] = None
        return plain(values)


def config_hash(config: Mapping[str, Any]) -> str:
    """16 hex digits over the resolved config, less what cannot change a result."""
    counts = {key: value for key, value in config.items() if key not in BESIDE_THE_RESULT}
    return hashlib.sha256(json.dumps(plain(counts), sort_keys=True).encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    """`value` as JSON has it: mappings and sequences copied, NaN and infinities as text, anything else as its text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined with dots; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def write_files(record: RunRecord, folder: Path) -> None:
    """Write the generated sources to `sources/` and each memory plan as `plan-<program>.svg`."""
    if record.sources:
        (folder / "sources").mkdir(exist_ok=True)
    for name, text in record.sources.items():
        (folder / "sources" / name).write_text(text, encoding="utf-8")
    for program in record.programs:
        if program.plan is not None and program.plan.svg:
            name = f"plan-{program.name.replace(' ', '')}.svg"
            (folder / name).write_text(program.plan.svg, encoding="utf-8")


def write_results(record: RunRecord, folder: Path) -> Path:
    """Write `results.json` into `folder`, whole or not at all."""
    path = folder / "results.json"
    write_whole(path, json.dumps(record.to_dict(), indent=1, allow_nan=False) + "\n")
    return path
