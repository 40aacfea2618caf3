"""One job of a suite run, inside its own process: an ordinary run of the pipeline, and a `Record` of it.

Comes in: a `Job` and the settings of the run. Goes out: a `Record`; what the run leaves lies in the job's folder. No
exception leaves it: whatever a model raises becomes the record's reason.
"""

from __future__ import annotations

import resource
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from pipeline import job as pipeline_job
from pipeline.compile import evaluating
from pipeline.compose import compose
from pipeline.config import Config
from pipeline.configure import configuration
from pipeline.models import load
from pipeline.precision import context_of, converted, narrowed
from pipeline.progress import Progress
from pipeline.result import Result
from pipeline.stages import service
from pipeline.suite.record import EAGER_FAILS, PASSED, Job, Record
from stages.ir.errors import UserError

Wrap = Callable[[Any], Callable[..., Any]]

COMPILED = ("capture", "precision", "rewrite", "fusion", "buffers", "autotune", "codegen", "runtime", "validate")


@dataclass(frozen=True)
class Settings:
    """What all jobs of a run share.

    size        of the models: smoke or full
    device      cpu or cuda
    peers       engines to time beside ours; none: nothing is timed
    overrides   further ones of the config
    tracking    whether each job is logged to MLflow
    """

    size: str = "smoke"
    device: str = "cpu"
    peers: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    tracking: bool = False


def overrides_of(job: Job, settings: Settings) -> list[str]:
    """The job as overrides of the config, as on the command line of `run.py`."""
    lines = [
        f"model=suite/{job.name}",
        f"model.size={settings.size}",
        f"precision={job.precision}",
        f"device={settings.device}",
        f"tracking={'default' if settings.tracking else 'off'}",
    ]
    if settings.peers:
        lines += ["benchmark=quick", f"engine.peers=[{','.join(settings.peers)}]", "engine.warm_compile=false"]
    else:
        lines.append(f"stages=[{','.join(COMPILED)}]")
    return [*lines, "validate.bisect=false", *settings.overrides]


def perform(argument: tuple[Job, Settings, Path], tell: Callable[[object], None]) -> Record:
    """`run`, as `pipeline.pool` calls it."""
    return run(*argument)


def run(job: Job, settings: Settings, folder: Path) -> Record:
    """Do the job in `folder`, which is made."""
    begin = time.perf_counter()
    progress = Progress(Console(quiet=True), quiet=True)
    result: Result | None = None
    status, reason = "error", ""
    try:
        overrides = overrides_of(job, settings)
        config, _ = configuration(compose(overrides), overrides)
        folder.mkdir(parents=True, exist_ok=True)
        result = Result(config, folder)
        pipeline_job.run(config, None, folder, progress, result)
        status = PASSED if result.status == "passed" else "failed"
        reason = "" if status == PASSED else _first(result.validation.reasons)
    except UserError as error:
        reason = _one_line(str(error))
    except Exception as error:
        traceback.print_exc()
        reason = _one_line(f"{type(error).__name__}: {error}")
    record = Record(job.name, job.precision, status, "" if status == PASSED else progress.current, reason)
    if result is not None:
        record = _filled(record, result)
        if record.breaks or record.eager_parts:
            record = replace(record, peer_breaks=peer_breaks(partial(_call, result.config)))
        if record.status == "error" and (why := _why_eager_fails(result)):
            record = replace(record, status=EAGER_FAILS, reason=_one_line(why))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return replace(record, seconds=round(time.perf_counter() - begin, 1), process_bytes=peak)


def _filled(record: Record, result: Result) -> Record:
    """`record` with what the run found, as far as it came."""
    values = result.to_dict()
    notes = [note for note in result.notes if not note.startswith("graph break at ")]
    record = replace(record, versions=result.versions, device=result.device, notes=tuple(map(_one_line, notes)))
    if result.compilation is not None:
        record = replace(
            record,
            graphs=len(result.compilation.units),
            breaks=tuple(_one_line(str(place)) for place in result.compilation.breaks),
            eager_parts=tuple(map(_one_line, result.compilation.eager)),
            fused=values["launches"],
            library=values["library_calls"],
            arena_bytes=values["arena_bytes"],
        )
        seconds = sum(took for name, took in result.stage_seconds.items() if name in (*COMPILED[:-1], "first call"))
        record = replace(record, compile_seconds={"torchweld": round(seconds, 2)})
    if result.validation is not None:
        compared = sum(prod(check.shape) for check in result.validation.checks)
        record = replace(record, compared=compared, error_ratio=result.validation.error_ratio)
    return _with_times(record, result.benchmark) if result.benchmark is not None else record


def _with_times(record: Record, benchmark: Any) -> Record:
    engines = benchmark.engines
    cold = {engine.name: engine.compile_time.cold_seconds for engine in engines}
    call = {engine.name: engine.memory.call_bytes for engine in engines if engine.memory is not None}
    failures = tuple(f"{engine.name}: {_one_line(engine.failure)}" for engine in engines if engine.failure)
    return replace(
        record,
        latency_ms={engine.name: engine.latency.median_ms for engine in engines if engine.latency is not None},
        speedup={engine.name: engine.speedup.value for engine in engines if engine.speedup is not None},
        memory_bytes={name: count for name, count in call.items() if count is not None},
        compile_seconds={name: seconds for name, seconds in cold.items() if seconds is not None},
        notes=(*record.notes, *failures),
    )


def peer_breaks(call: Callable[[Wrap], None]) -> tuple[str, ...] | None:
    """Where Dynamo breaks a model for any other compiler, as `file:line`; None where it fails.

    call   calls the model, wrapped
    """
    torch._dynamo.reset()
    log = service("break_log")()
    try:
        # `torch._dynamo.explain` would end with a reset, which takes the reasons away.
        call(partial(torch.compile, backend="eager"))
    except Exception:
        traceback.print_exc()
        return None
    return tuple(dict.fromkeys(f"{place.file}:{place.line}" for place in (*log.breaks(), *log.failures())))


def _why_eager_fails(result: Result) -> str:
    """What the model raises as it is, at the job's precision; empty where it runs."""
    try:
        _call(result.config, lambda model: model)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _call(config: Config, wrap: Wrap) -> None:
    """Call the config's model anew, wrapped, as eager runs it."""
    model = load(config.model, config.seed, torch.device(config.device.kind))
    args, kwargs = narrowed(*model.inputs(config.seed), config.precision)
    module = converted(model.module, config.precision)
    with evaluating(module), torch.no_grad(), context_of(config.precision, model.device):
        wrap(module)(*args, **kwargs)


def _first(reasons: Sequence[str]) -> str:
    """The first reason, and how many more there are."""
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return _one_line(reasons[0]) + more if reasons else "failed, and no reason was given"


def _one_line(text: str, length: int = 400) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 4] + " ..."
