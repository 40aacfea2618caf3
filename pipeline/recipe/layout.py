"""What stands in a recipe: the keys of the file, as frozen dataclasses that `pipeline.schema` reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from stages.ir.schedule import Schedule

FORMAT = 2

# What a recipe records of the config. Not here: codegen (the compiler and its flags), autotune (its database; nothing
# is tuned again), tracking, and keys about files.
RECORDED = (
    *("model", "device", "engine", "capture", "rewrite", "precision", "fusion", "buffers", "runtime", "validate"),
    *("benchmark", "stages", "seed"),
)
# Those of them that no program depends on: against whom, how long and how closely it is measured.
BESIDE_THE_PROGRAM = ("device", "engine", "validate", "benchmark")


@dataclass(frozen=True)
class KernelRecord:
    """One kernel of the program. schedule: fields of `stages.ir.schedule.Schedule`; None: the default one."""

    name: str
    hash: str
    launches: int = 1
    schedule: dict[str, int | bool] | None = None


@dataclass(frozen=True)
class Interval:
    """A figure and the ends of its confidence interval (`benchmark.confidence`)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class EngineRecord:
    """What one engine was measured at.

    latency_ms        median of one call
    speedup           against `Results.baseline`, of medians taken in turn; None for the baseline itself
    memory_bytes      peak of a call and what is held besides
    compile_seconds   cold where it is known, else warm
    """

    latency_ms: Interval
    speedup: Interval | None = None
    memory_bytes: float | None = None
    compile_seconds: float | None = None


@dataclass(frozen=True)
class ValidationRecord:
    """error_ratio: error against float64 over eager's own; task_metrics: of the model's own task."""

    passed: bool
    error_ratio: float | None = None
    reasons: tuple[str, ...] = ()
    task_metrics: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """What the run came to; the figures only where its result was not wrong.

    rounds   in each of which every engine was timed once
    load     what else used the machine meanwhile, in words; empty where it was little
    """

    status: Literal["passed", "failed", "unvalidated"]
    validation: ValidationRecord | None = None
    baseline: str = ""
    rounds: int = 0
    load: str = ""
    engines: dict[str, EngineRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A recipe as it stands in its file; `format` is the version of this layout."""

    format: int
    config: dict[str, Any]
    versions: dict[str, str]
    device: str
    weights: str = ""
    kernels: tuple[KernelRecord, ...] = ()
    results: Results | None = None

    @property
    def schedules(self) -> dict[str, Schedule]:
        """By kernel hash, those that are not the default."""
        return {kernel.hash: Schedule(**kernel.schedule) for kernel in self.kernels if kernel.schedule}  # type: ignore[arg-type]

    @property
    def device_type(self) -> str:
        """ "cpu" or "cuda": a schedule of the one says nothing to the other."""
        return self.device.partition(":")[0]
