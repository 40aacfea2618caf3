"""What a run knows at its end, or where it was stopped: the one value that report, tracking and recipe are made of."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.compile import Compilation
from pipeline.config import Config
from pipeline.inputs import InputsRecord
from pipeline.recipe import kernels_of, plain


@dataclass
class Result:
    """One run.

    status          running, passed, failed (validation), unvalidated (the stage was left out), interrupted, error
    stopped_in      the stage that was running when the run was interrupted or broke
    stage_seconds   wall time of each stage, for all graphs together
    started         seconds since 1970
    step_ms         milliseconds of each step run by itself, by the number of the graph
    inputs          what the model was called with; None before it was
    pictures        the arena of each graph as SVG, by the graph's number
    validation, benchmark   what the stages gave; None where they did not run (to the end)
    notes           what the user should know, in order
    sweep           see `pipeline.report.record.RunRecord`
    """

    config: Config
    folder: Path
    status: str = "running"
    stopped_in: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    weights: str = ""
    compilation: Compilation | None = None
    validation: Any = None
    benchmark: Any = None
    stage_seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    inputs: InputsRecord | None = None
    pictures: dict[int, str] = field(default_factory=dict)
    step_ms: dict[int, list[float]] = field(default_factory=dict)
    sweep: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """False where the run was stopped: what is there then is a part of the results."""
        return self.status in ("passed", "failed", "unvalidated")

    @property
    def programs(self) -> tuple[Any, ...]:
        return self.compilation.programs if self.compilation is not None else ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, units in the names: what a recipe holds of the results."""
        programs = self.programs
        plans = [program.plan for program in programs if program.plan is not None]
        values: dict[str, Any] = {
            "status": self.status,
            "complete": self.complete,
            "device": self.device,
            "weights": self.weights,
            "stage_seconds": {name: round(seconds, 3) for name, seconds in self.stage_seconds.items()},
            "graphs": len(programs),
            "launches": sum(len(program.launches) for program in programs),
            "kernels": len(kernels_of(programs)),
            "library_calls": sum(len(program.externs) for program in programs),
            "arena_bytes": sum(plan.size for plan in plans),
            "notes": self.notes,
        }
        if self.stopped_in:
            values["stopped_in"] = self.stopped_in
        if self.validation is not None:
            values["validation"] = {
                "passed": self.validation.passed,
                "error_ratio": self.validation.error_ratio,
                "reasons": list(self.validation.reasons),
                "task_metrics": dict(self.validation.task_metrics),
            }
        # A result that was not proved right has no speed to show.
        if self.benchmark is not None and self.status != "failed":
            values["latency_ms"] = {
                engine.name: engine.latency.median_ms for engine in self.benchmark.engines if engine.latency is not None
            }
            values["compile_seconds"] = {
                engine.name: engine.compile_time.cold_seconds
                for engine in self.benchmark.engines
                if engine.compile_time.cold_seconds is not None
            }
        return plain(values)
