"""One run, from a checked config to results on disk: load, compile, validate, benchmark, record.

Comes in: a `Config` and the run folder. Goes out: files in the folder and an exit code: 0 for a result that is right,
1 for one that is not, 130 after Ctrl-C. A `UserError` passes through to whoever called; the folder is then taken away
again if nothing worth keeping is in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline import recipe as recipes
from pipeline.bisect import first_wrong_step
from pipeline.compile import Compilation, Session, compile_model
from pipeline.config import Config
from pipeline.device import describe, device_of, versions
from pipeline.dump import Dump
from pipeline.explain import explain
from pipeline.files import write_whole
from pipeline.inputs import record_inputs
from pipeline.measuring import measuring_on
from pipeline.models import Model, load
from pipeline.models.suite import expand
from pipeline.precision import context_of, narrowed, products
from pipeline.progress import Progress
from pipeline.recipe import Recipe
from pipeline.result import Result
from pipeline.stages import service
from pipeline.stepwise import step_times
from pipeline.validation import validate
from stages.ir.errors import UserError

OK, FAILED, INTERRUPTED = 0, 1, 130


def run(
    config: Config,
    recipe: Recipe | None,
    folder: Path,
    progress: Progress | None = None,
    result: Result | None = None,
    sweep: Mapping[str, str] | None = None,
    written: Callable[[Result], None] = lambda result: None,
) -> int:
    """Do the run; returns the exit code. Raises `UserError`, and whatever a fault of ours raises.

    result    an empty `Result` of this config and folder, for a caller that wants to see what the run found
    sweep     the sweep that this run is a job of (see `pipeline.report.record.RunRecord`)
    written   called once the results are on the disk, before they are published
    """
    progress = progress or Progress()
    session = Session(config, progress, Dump(folder / "dump" if config.dump else None), recipe)
    result = result or Result(config, folder)
    result.stage_seconds, result.sweep = progress.seconds, dict(sweep or {})
    try:
        with products(config.precision):
            _work(session, result, recipe)
        _write(result)
        written(result)
        _publish(result, progress)
    except KeyboardInterrupt:
        return _interrupted(result, progress)
    except UserError:
        if not _removed(folder):
            _write_as(result, "error", progress)
        raise
    except Exception:
        with suppress(Exception):  # the fault itself is what has to be seen
            _write_as(result, "error", progress)
        raise
    return FAILED if result.status == "failed" else OK


def _work(session: Session, result: Result, recipe: Recipe | None) -> None:
    """The run itself; what is known so far stands in `result` all the time."""
    config, progress = session.config, session.progress
    device = device_of(config.device)
    service("check_toolchain")(device, config.codegen)
    if config.device.threads:
        torch.set_num_threads(config.device.threads)
    result.device = describe(device)
    result.versions = versions([expand(config.model).library])
    _announce(config, result, recipe, progress)
    if recipe is not None:
        recipes.hold(config.recipe, recipes.lines_of(recipe, _recipe_of(result), recipes.BEFORE))
    with progress.stage("load"):
        model = load(config.model, config.seed, device)
        model.check(config.seed)
    result.weights = model.weights
    progress.say(f"weights: {model.weights}")
    args, kwargs = model.inputs(config.seed)
    result.inputs = record_inputs(args, kwargs, replace(config, model=model.config))
    begin = time.perf_counter()
    compilation = result.compilation = compile_model(model.module, args, kwargs, session)
    with torch.no_grad(), progress.stage("first call"):
        compilation.call(*args, **kwargs)
    compile_seconds = time.perf_counter() - begin
    _tell(compilation, result, progress)
    if recipe is not None:
        _compare(recipe, result, progress)
    status = _validate(model, compilation, session, result)
    if status != "failed":
        _benchmark(model, compilation, compile_seconds, session, result)
    result.status = status


def _announce(config: Config, result: Result, recipe: Recipe | None, progress: Progress) -> None:
    """What will happen, before it does."""
    progress.say(f"torchweld: {config.model.name} in {config.precision.mode} on {result.device}")
    progress.say(f"stages: {' -> '.join(config.stages)}")
    if "benchmark" in config.stages:
        progress.say(f"timed against: {', '.join(config.engine.peers)}")
    if recipe is not None:
        progress.say(f"recipe: {config.recipe.path}; {_schedules_taken(recipe, result)}")
    progress.say(f"results in: {result.folder}")


def _tell(compilation: Compilation, result: Result, progress: Progress) -> None:
    """What the user should know of the compilation."""
    notes = [f"graph break at {place}" for place in compilation.breaks]
    notes += compilation.notes
    notes += [note for unit in compilation.units for note in unit.graph.notes]
    notes += [note for program in compilation.programs for note in program.notes]
    notes += [note for unit in compilation.units for note in getattr(unit.executable, "notes", ())]
    result.notes += dict.fromkeys(notes)
    for note in result.notes:
        progress.say(f"note: {note}")


def _schedules_taken(recipe: Recipe, result: Result) -> str:
    here = result.device.partition(":")[0]
    if recipe.device_type == here:
        return "its schedules are taken, nothing is tuned"
    return f"its schedules are for {recipe.device_type}, so that here, on {here}, kernels are scheduled as configured"


def _compare(recipe: Recipe, result: Result, progress: Progress) -> None:
    """Tell what is not as the recipe has it. Raises `UserError` where the config wants no difference."""
    lines = recipes.lines_of(recipe, _recipe_of(result))
    recipes.hold(result.config.recipe, lines)
    for line in lines or ["no difference: the same versions, device and kernels"]:
        progress.say(f"against the recipe: {line}")
    result.notes += [f"against the recipe: {line}" for line in lines]


def _recipe_of(result: Result) -> Recipe:
    """The run so far as a recipe."""
    results = None
    if result.complete:
        results = recipes.results_of(result.status, result.validation, result.benchmark)
    about = (result.versions, result.device, result.weights, results)
    return recipes.recipe_of(result.config, result.programs, *about)


def _validate(model: Model, compilation: Compilation, session: Session, result: Result) -> str:
    """The status of the run, as far as being right decides it."""
    config, progress = session.config, session.progress
    if session.stage("validate") is None:
        result.notes.append("not validated: the stage was left out, so nobody knows whether the result is right")
        progress.say(f"note: {result.notes[-1]}")
        return "unvalidated"

    def inputs_of(number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return model.inputs(config.validate.seed + number)

    sets = [inputs_of(number) for number in range(config.validate.input_sets)]
    with progress.stage("validate"):
        result.validation = validate(compilation.call, model.module, sets, session, model.metric, inputs_of)
    if not result.validation.passed:
        if config.validate.bisect:
            with progress.stage("bisect"), torch.no_grad():
                wrong = first_wrong_step(compilation, *sets[0], config)
            result.validation = replace(result.validation, first_wrong_step=wrong)
        progress.say("VALIDATION FAILED")
        for reason in (*result.validation.reasons, result.validation.first_wrong_step):
            if reason:
                progress.say(f"  {reason}")
        return "failed"
    ratio = result.validation.error_ratio
    progress.say("validated" + (f": error {ratio:.2f} × eager's own" if ratio is not None else ""))
    for name, value in result.validation.task_metrics.items():
        progress.say(f"  {name}: {value:.6g}")
    return "passed"


def _benchmark(
    model: Model, compilation: Compilation, compile_seconds: float, session: Session, result: Result
) -> None:
    stage, config, progress = session.stage("benchmark"), session.config, session.progress
    if stage is None:
        return

    compile_time, build_peers = service("compile_time"), service("build_peers")

    args, kwargs = narrowed(*model.inputs(config.seed), config.precision)
    device = model.device
    cached = all(unit.compiled.cached for unit in compilation.units)
    own_time = compile_time(**{"warm_seconds" if cached else "cold_seconds": compile_seconds})

    def call(function: Callable[..., Any]) -> object:
        with torch.no_grad(), context_of(config.precision, device):
            return function(*args, **kwargs)

    def ours() -> object:
        with torch.no_grad():
            return compilation.call(*args, **kwargs)

    measuring = measuring_on(device, progress.waiting)
    with progress.stage("peers"):
        peers = build_peers(
            config.engine.peers, compilation.model, call, device, config.engine, progress.detail, measuring
        )
    engines = {"torchweld": ours, **{peer.name: peer.engine for peer in peers if peer.engine is not None}}
    plans = [program.plan for program in compilation.programs if program.plan is not None]
    with progress.stage("benchmark"):
        result.benchmark = stage.load()(
            engines,
            config.benchmark,
            device,
            baseline=config.engine.baseline,
            batch_size=model.config.batch,
            compile_times={
                "torchweld": own_time,
                **{peer.name: peer.compile_time for peer in peers},
            },
            held_bytes={
                "torchweld": sum(plan.size for plan in plans),
                **{peer.name: peer.held_bytes for peer in peers},
            },
            details={peer.name: peer.detail for peer in peers},
            failures={peer.name: peer.failure for peer in peers if peer.failure},
            measuring=measuring,
        )
    with progress.stage("steps"), torch.no_grad(), measuring():
        result.step_ms = step_times(compilation, args, kwargs, device)


# ---- what stays ----------------------------------------------------------------------------


def _write(result: Result) -> None:
    """The files that every run leaves, whole or not. Raises `UserError` where they cannot be written."""
    try:
        _write_files(result)
    except OSError as error:
        raise UserError(
            f"{error.filename or result.folder} cannot be written: {error.strerror}", "is the disk full?"
        ) from error


def _write_files(result: Result) -> None:
    for unit in result.compilation.units if result.compilation is not None else ():
        if unit.program is not None and unit.program.plan is not None:
            result.pictures[unit.number] = service("arena_picture")(unit.program.plan)
    service("write_report")(result)
    if result.compilation is None:
        return
    write_whole(result.folder / "explain.txt", explain(result.compilation.units))
    if result.complete:
        recipes.write(result.folder / recipes.FILE, _recipe_of(result))


def _publish(result: Result, progress: Progress) -> None:
    """The record in MLflow, and the report on the terminal."""
    if result.config.tracking.enabled:
        with progress.stage("tracking"):
            for line in service("log_run")(result):
                progress.say(line)
    else:
        service("keep_run")(result)
    service("show_report")(result, progress.console)


def _write_as(result: Result, status: str, progress: Progress) -> None:
    """Write what there is, marked as a part of a run that did not end."""
    result.status, result.stopped_in = status, progress.current
    _write(result)
    service("keep_run")(result)


def _interrupted(result: Result, progress: Progress) -> int:
    """After Ctrl-C: keep what there is, and say whether it is whole."""
    where = progress.current or "the beginning"
    if result.complete:
        progress.say(
            f"interrupted in {where}; the results in {result.folder} are whole, but not all of them were logged"
        )
    else:
        _write_as(result, "interrupted", progress)
        progress.say(f"interrupted in {where}; what there is stands in {result.folder}, marked as partial")
    return INTERRUPTED


def _removed(folder: Path) -> bool:
    """Remove the run folder if it is empty, and the folder of its date if that then is; whether it is gone."""
    try:
        folder.rmdir()
    except OSError:
        return not folder.exists()
    with suppress(OSError):
        folder.parent.rmdir()
    return True
