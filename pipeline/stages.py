"""The stages by name, what each takes and gives, and which lists of them make a pipeline.

Comes in: the names of `stages:` in the config. Goes out: the `Stage`s, in order, or a `ConfigError` with the reason why
that order cannot work. A stage is imported when it first runs; only `STAGES` and `SERVICES` know where one lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from stages.ir.errors import ConfigError, nearest

# What flows between the stages, from the user's model to figures about it.
LEVELS = ("model", "graph", "program", "planned program", "binary", "executable", "measured")


@dataclass(frozen=True)
class Stage:
    """One stage.

    takes, gives   levels (see `LEVELS`)
    required       whether a pipeline needs it; one that gives what it takes can mostly be left out
    load           imports the stage and returns its `run`
    """

    name: str
    takes: str
    gives: str
    required: bool
    load: Callable[[], Callable[..., Any]]


def _room(name: str) -> Callable[[], Callable[..., Any]]:
    return lambda: import_module(f"stages.{name}").run


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage("capture", "model", "graph", True, _room("capture")),
        Stage("precision", "graph", "graph", False, _room("precision")),
        Stage("rewrite", "graph", "graph", False, _room("rewrite")),
        Stage("fusion", "graph", "program", True, _room("fusion")),
        Stage("buffers", "program", "planned program", True, _room("buffers")),
        Stage("autotune", "planned program", "planned program", False, _room("autotune")),
        Stage("codegen", "planned program", "binary", True, _room("codegen")),
        Stage("runtime", "binary", "executable", True, _room("runtime")),
        Stage("validate", "executable", "executable", False, _room("validate")),
        Stage("benchmark", "executable", "measured", False, _room("benchmark")),
    )
}


# What rooms offer besides a stage's `run`: the pipeline hands it to another stage, or uses it for the record.
SERVICES: dict[str, str] = {
    "make_backend": "stages.capture.backend:make_backend",
    "break_log": "stages.capture.breaks:BreakLog",
    "explain": "stages.fusion.explain:explain",
    "check_toolchain": "stages.codegen:check_toolchain",
    "build_kernels": "stages.codegen:compile_kernels",
    "default_schedule": "stages.codegen:default_schedule",
    "capture_context": "stages.precision:capture_context",
    "products": "stages.precision:products",
    "judge": "stages.autotune.judge:judge",
    "guess": "stages.autotune.guess:guess",
    "tuning_database": "stages.autotune.database:Database",
    "tuning_path": "stages.autotune.database:default_path",
    "arena_picture": "stages.buffers.picture:picture",
    "float64_reference": "stages.validate:float64_reference",
    "time_steps": "stages.benchmark.steps:time_steps",
    "first_wrong_step": "stages.validate:first_wrong_step",
    "node_values": "stages.validate:node_values",
    "build_peers": "stages.benchmark.peers:build_peers",
    "compile_time": "stages.benchmark:CompileTime",
    "write_report": "pipeline.report:write",
    "show_report": "pipeline.report:show",
    "log_run": "pipeline.tracking:log",
    "keep_run": "pipeline.tracking:keep",
}


def service(name: str) -> Any:
    """The function of this name in `SERVICES`, imported."""
    module, _, function = SERVICES[name].partition(":")
    return getattr(import_module(module), function)


def plan(names: Sequence[str]) -> tuple[Stage, ...]:
    """The stages of these names. Raises `ConfigError` on an unknown, doubled, missing or misplaced one."""
    for name in names:
        if name not in STAGES:
            raise ConfigError("stages", f"there is no '{name}'", nearest(name, STAGES))
    for name in names:
        if list(names).count(name) > 1:
            raise ConfigError("stages", f"'{name}' is listed twice", "list each stage once")
    for stage in STAGES.values():
        if stage.required and stage.name not in names:
            optional = ", ".join(other.name for other in STAGES.values() if not other.required)
            raise ConfigError("stages", f"'{stage.name}' is missing", f"add it; only {optional} can be left out")
    level, before = "model", "the start"
    for name in names:
        stage = STAGES[name]
        if stage.takes != level:
            raise ConfigError(
                "stages",
                f"'{name}' takes a {stage.takes}, but after {before} there is a {level}",
                f"the order that works: [{', '.join(other for other in STAGES if other in names)}]",
            )
        level, before = stage.gives, f"'{name}'"
    return tuple(STAGES[name] for name in names)
