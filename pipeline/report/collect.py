"""From what the pipeline holds at the end of a run (`pipeline.result.Result`) to the `RunRecord` that is shown.

`Result` has the live objects (programs, compiled kernels); a `RunRecord` has only numbers and text.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.report.program import record_program
from pipeline.report.record import ProgramRecord, RunRecord, plain

if TYPE_CHECKING:
    from pipeline.result import Result

_ENDED_EARLY = ("running", "interrupted", "error")


def record_of(result: Result) -> RunRecord:
    """Everything of `result` that a reader may want.

    Reads its config, folder, status, stopped_in, versions, device, weights, compilation, validation, benchmark,
    stage_seconds and notes; and, where it has them, `started` (seconds since 1970), `command`, `inputs`, `step_ms`
    (milliseconds of each step, by the number of the graph) and `pictures` (the SVG of the memory plan, by that number).
    """
    config = plain(asdict(result.config))
    if config.get("tracking", {}).get("uri"):
        config["tracking"]["uri"] = re.sub(r"//[^/@]*@", "//***@", config["tracking"]["uri"])
    stage_seconds = dict(result.stage_seconds)
    began = getattr(result, "started", None) or time.time() - sum(stage_seconds.values())
    model, precision = config.get("model", {}).get("name", "model"), config.get("precision", {}).get("mode", "")
    record = RunRecord(
        name="-".join(part for part in (model, precision) if part),
        command=getattr(result, "command", "") or _command(),
        started=datetime.fromtimestamp(began, timezone.utc).isoformat(timespec="seconds"),
        seconds=max(0.0, time.time() - began),
        config=config,
        versions=dict(result.versions),
        device={"name": result.device, "weights": result.weights},
        stage_seconds=stage_seconds,
        inputs=getattr(result, "inputs", None),
        validation=result.validation,
        benchmark=result.benchmark,
        notes=list(result.notes),
        sweep=dict(getattr(result, "sweep", {})),
    )
    if result.status in _ENDED_EARLY:
        record.partial = f"{result.status} in {result.stopped_in or 'the beginning'}"
    if result.compilation is not None:
        for unit in result.compilation.units:
            if unit.program is not None:
                record.programs.append(_program(result, unit))
            if unit.compiled is not None:
                record.sources |= {f"graph{unit.number}-{name}": text for name, text in unit.compiled.sources.items()}
    return record


def _program(result: Result, unit: Any) -> ProgramRecord:
    times = getattr(result, "step_ms", {}).get(unit.number, ())
    picture = getattr(result, "pictures", {}).get(unit.number, "")
    return record_program(unit.program, f"graph {unit.number}", times, picture)


def _command() -> str:
    """How this process was started, without the folder of the script."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
