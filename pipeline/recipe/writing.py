"""A recipe made of a run, and written whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import Config
from pipeline.files import write_whole
from pipeline.recipe.layout import (
    FORMAT,
    RECORDED,
    EngineRecord,
    Interval,
    KernelRecord,
    Recipe,
    Results,
    ValidationRecord,
)
from stages.benchmark.result import Benchmark, EngineResult
from stages.benchmark.statistics import Ratio, interval_of_median
from stages.ir.program import Program


def recipe_of(
    config: Config,
    programs: Sequence[Program],
    versions: Mapping[str, str],
    device: str,
    weights: str,
    results: Results | None = None,
) -> Recipe:
    """The recipe of a run."""
    whole = plain(asdict(config))
    return Recipe(
        FORMAT,
        {key: whole[key] for key in RECORDED},
        dict(versions),
        device,
        weights,
        kernels_of(programs),
        results,
    )


def write(path: Path, recipe: Recipe, head: Sequence[str] = ()) -> None:
    """Write `recipe` to `path`, whole or not at all, below the lines of `head`. Raises `OSError` where that fails."""
    lines = head or (f"Make the same program again:  torchweld recipe={path.name}",)
    values = {field.name: plain(getattr(recipe, field.name)) for field in fields(Recipe)}
    body = yaml.safe_dump(values, sort_keys=False, width=120, allow_unicode=True)
    write_whole(path, "".join(f"# {line}\n" for line in lines) + body)


def kernels_of(programs: Sequence[Program]) -> tuple[KernelRecord, ...]:
    """Each kernel of `programs` once, in the order of its first launch."""
    launches = [launch for program in programs for launch in program.launches]
    counts: dict[str, int] = {}
    for launch in launches:
        counts[launch.kernel.hash] = counts.get(launch.kernel.hash, 0) + 1
    first = {launch.kernel.hash: launch for launch in reversed(launches)}
    return tuple(
        KernelRecord(
            first[name].kernel.name, name, count, schedule.to_dict() if (schedule := first[name].schedule) else None
        )
        for name, count in counts.items()
    )


def results_of(status: str, validation: Any, benchmark: Benchmark | None) -> Results:
    """What a run came to. validation: a `stages.validate.Validation`; a wrong result has no figures."""
    checked = None
    if validation is not None:
        metrics = {name: _finite(value) for name, value in validation.task_metrics.items()}
        reasons = tuple(map(str, validation.reasons))
        checked = ValidationRecord(validation.passed, _finite(validation.error_ratio), reasons, metrics)
    if benchmark is None or status == "failed":
        return Results(status, checked)  # type: ignore[arg-type]
    engines = {each.name: _engine(each, benchmark) for each in benchmark.engines if each.samples_ms}
    about = (benchmark.baseline, benchmark.rounds, benchmark.load, engines)
    return Results(status, checked, *about)  # type: ignore[arg-type]


def _engine(engine: EngineResult, benchmark: Benchmark) -> EngineRecord:
    median = interval_of_median(engine.samples_ms, benchmark.confidence)
    times = engine.compile_time
    seconds = times.warm_seconds if times.cold_seconds is None else times.cold_seconds
    return EngineRecord(
        _interval(median),
        None if engine.speedup is None else _interval(engine.speedup),
        None if engine.memory is None else engine.memory.peak_bytes,
        None if seconds is None else round(seconds, 2),
    )


def _interval(ratio: Ratio) -> Interval:
    return Interval(*(float(f"{value:.6g}") for value in (ratio.value, ratio.low, ratio.high)))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def plain(value: Any) -> Any:
    """`value` of nothing but dicts with text keys, lists, text, numbers and None; anything else as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
