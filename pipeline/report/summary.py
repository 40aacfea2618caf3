"""The few figures of a run that runs are compared by, read from its `results.json`, or from a recipe.

Comes in: a run folder, or what its `results.json` holds, or a recipe. Goes out: a `Summary`. The file may come from
elsewhere or from another version: whatever is not there is None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.recipe import FILE, Interval, ReadRecipe, Results
from pipeline.report.record import OURS, flatten
from stages.benchmark.statistics import Ratio
from stages.ir.errors import UserError

RESULTS = "results.json"


@dataclass(frozen=True)
class Summary:
    """One run.

    status            passed, failed, unvalidated, partial; in a sweep also how a job without results ended
    settings          the resolved config, flat
    latency_ms        median of one call of our engine; None where it was not timed, or is wrong
    items_per_second  of our engine: the batch by the median
    samples_ms        its latency in each round; interval_ms: the median with its interval, where samples were not kept
    speedup           against `baseline`, with its interval
    error_ratio       error against float64 over eager's own; relative_error: the largest one
    memory_bytes      peak of a call and what is held besides
    compile_seconds   cold where it is known, else warm (`compile_warm`)
    load              what else used the machine while it was timed, in words
    reason            why there is no right result
    """

    name: str
    status: str
    folder: str = ""
    model: str = ""
    device: str = ""
    started: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    latency_ms: float | None = None
    items_per_second: float | None = None
    samples_ms: tuple[float, ...] = ()
    interval_ms: Ratio | None = None
    baseline: str = ""
    speedup: Ratio | None = None
    error_ratio: float | None = None
    relative_error: float | None = None
    memory_bytes: float | None = None
    compile_seconds: float | None = None
    compile_warm: bool = False
    load: str = ""
    reason: str = ""


def read_summary(folder: Path) -> Summary:
    """The summary of the run in `folder`. Raises `UserError` where there is none."""
    path = folder / RESULTS
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return summary_of(values, folder)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}", "name the folder of a run, which has a results.json"
        ) from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UserError(f"{path} is not the result of a run: {error}", "name the folder of a run") from error


def summary_of(values: Mapping[str, Any], folder: Path) -> Summary:
    """What `RunRecord.to_dict` wrote, summed up."""
    config, benchmark, validation = (values.get(name) or {} for name in ("config", "benchmark", "validation"))
    engine: dict[str, Any] = next((each for each in benchmark.get("engines", ()) if each["name"] == OURS), {})
    latency, ratio, memory = (engine.get(name) or {} for name in ("latency", "speedup", "memory"))
    compile_time = engine.get("compile_time") or {}
    cold = compile_time.get("cold_seconds")
    checks = [check["errors"] for check in validation.get("checks", ()) if check.get("errors")]
    errors = [check["relative_error"] for check in checks if isinstance(check.get("relative_error"), (int, float))]
    call_bytes = memory.get("call_bytes")
    reasons = [*validation.get("reasons", ()), values.get("partial", "")]
    return Summary(
        name=str(values["name"]),
        status=str(values["status"]),
        folder=str(folder),
        model=str((config.get("model") or {}).get("name", "")),
        device=str((values.get("device") or {}).get("name", "")),
        started=str(values.get("started", "")),
        settings=flatten(config),
        latency_ms=latency.get("median_ms"),
        items_per_second=engine.get("items_per_second"),
        samples_ms=tuple(engine.get("samples_ms") or ()),
        baseline=str(benchmark.get("baseline", "")),
        speedup=Ratio(ratio["value"], ratio["low"], ratio["high"]) if ratio else None,
        error_ratio=_number(validation.get("error_ratio")),
        relative_error=max(errors, default=None),
        memory_bytes=None if call_bytes is None else call_bytes + (memory.get("held_bytes") or 0),
        compile_seconds=compile_time.get("warm_seconds") if cold is None else cold,
        compile_warm=cold is None and compile_time.get("warm_seconds") is not None,
        load=str(benchmark.get("load", "")),
        reason=next((str(reason) for reason in reasons if reason), ""),
    )


def summary_of_recipe(recipe: ReadRecipe) -> Summary:
    """What a recipe holds of its run, summed up."""
    path, results = Path(recipe.file), recipe.results or Results("unvalidated")
    settings = flatten(recipe.config)
    model, mode = (str(settings.get(key, "")) for key in ("model.name", "precision.mode"))
    checked, engine = results.validation, results.engines.get(OURS)
    reasons = checked.reasons if checked is not None else ()
    about = Summary(
        name=f"{model}-{mode}" if path.name == FILE else path.stem,
        status=results.status,
        folder=str(path.parent) if path.name == FILE else "",
        model=model,
        device=recipe.device,
        settings=settings,
        error_ratio=checked.error_ratio if checked is not None else None,
        reason=next(iter(reasons), ""),
    )
    if engine is None:
        return about
    return replace(
        about,
        latency_ms=engine.latency_ms.value,
        interval_ms=_ratio(engine.latency_ms),
        baseline=results.baseline,
        speedup=None if engine.speedup is None else _ratio(engine.speedup),
        memory_bytes=engine.memory_bytes,
        compile_seconds=engine.compile_seconds,
        load=results.load,
    )


def _ratio(interval: Interval) -> Ratio:
    return Ratio(interval.value, interval.low, interval.high)


def _number(value: Any) -> float | None:
    """JSON has NaN and infinities as text, which are no figures to compare."""
    return float(value) if isinstance(value, (int, float)) else None
