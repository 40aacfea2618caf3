"""The main function: hands the output of each stage to the next, in the order of `stages:` in the config.

    capture -> rewrite -> precision -> fusion -> buffers -> autotune -> codegen -> runtime

Comes in: a model and the inputs of one call, or one graph of torch.compile. Goes out: something to call. A stage knows
only its own input; what one needs of another (autotune: codegen's builder) is handed over here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from pipeline.config import Config
from pipeline.dump import Dump
from pipeline.precision import context_of
from pipeline.progress import Progress
from pipeline.stages import Stage, plan, service
from stages.ir import graph as graph_level
from stages.ir import program as program_level
from stages.ir.graph import Graph
from stages.ir.program import Launch, Program
from stages.ir.schedule import Schedule

Run = Callable[..., Any]


@dataclass
class Session:
    """What all compilations of one run share.

    schedules   by kernel hash, of a recipe: they are taken as they are, and nothing is tuned; None tunes as configured
    """

    config: Config
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    dump: Dump = field(default_factory=lambda: Dump(None))
    schedules: Mapping[str, Schedule] | None = None

    @property
    def stages(self) -> tuple[Stage, ...]:
        return plan(self.config.stages)

    def stage(self, name: str) -> Stage | None:
        """The stage of this name; None where the pipeline has been told to leave it out."""
        return next((stage for stage in self.stages if stage.name == name), None)


@dataclass(frozen=True)
class Unit:
    """One graph on its way through the stages; what a later stage makes is None until then."""

    number: int
    graph: Graph
    program: Program | None = None
    compiled: Any = None
    executable: Run | None = None


@dataclass(frozen=True)
class Compilation:
    """A compiled model. call: takes the model's arguments; breaks: where Dynamo had to split the model."""

    call: Run
    units: tuple[Unit, ...]
    breaks: tuple[Any, ...] = ()

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(unit.program for unit in self.units if unit.program is not None)


def compile_model(model: Run, args: Sequence[Any], kwargs: Mapping[str, Any], session: Session) -> Compilation:
    """Compile `model` for calls like `model(*args, **kwargs)`. It is run in evaluation mode and left as it was."""
    config = session.config
    capture = plan(config.stages)[0]
    with evaluating(model), torch.no_grad():
        with session.progress.stage(capture.name):
            context = partial(context_of, config.precision, device_in((args, kwargs)).type)
            captured = capture.load()(model, args, kwargs, config.capture, context)
        units = []
        for number, (graph, slot) in enumerate(zip(captured.graphs, captured.slots, strict=True)):
            unit = compile_graph(graph, session, number)
            slot.target = unit.executable
            units.append(unit)
    return Compilation(captured.call, tuple(units), tuple(captured.breaks))


def compile_graph(graph: Graph, session: Session, number: int = 0) -> Unit:
    """Take one graph through every stage from `rewrite` to `runtime`."""
    unit = Unit(number, graph)
    session.dump.after("capture", unit)
    for stage in session.stages:
        if stage.name in _HANDOVER or stage.takes == stage.gives == "graph":
            with session.progress.stage(stage.name, f"(graph {number + 1})" if number else ""):
                unit = _HANDOVER.get(stage.name, _graph_to_graph(stage.name))(stage.load(), unit, session)
            if session.config.debug:
                _verify(unit)
            session.dump.after(stage.name, unit)
    return unit


# What each stage is handed, and where its result goes.
_Handover = Callable[[Run, Unit, Session], Unit]


def _graph_to_graph(name: str) -> _Handover:
    return lambda run, unit, session: replace(unit, graph=run(unit.graph, getattr(session.config, name)))


def _tune(run: Run, unit: Unit, session: Session) -> Unit:
    assert unit.program is not None
    if session.schedules is not None:
        return replace(unit, program=with_schedules(unit.program, session.schedules))
    config = session.config
    build = partial(service("build_kernels"), config=config.codegen)
    database = service("tuning_database")(config.autotune)
    return replace(unit, program=run(unit.program, config.autotune, build, database))


_HANDOVER: dict[str, _Handover] = {
    "rewrite": _graph_to_graph("rewrite"),
    "precision": _graph_to_graph("precision"),
    "fusion": lambda run, unit, session: replace(unit, program=run(unit.graph, session.config.fusion)),
    "buffers": lambda run, unit, session: replace(unit, program=run(unit.program, session.config.buffers)),
    "autotune": _tune,
    "codegen": lambda run, unit, session: replace(unit, compiled=run(unit.program, session.config.codegen)),
    "runtime": lambda run, unit, session: replace(
        unit, executable=run(unit.program, unit.compiled, session.config.runtime)
    ),
}


def with_schedules(program: Program, schedules: Mapping[str, Schedule]) -> Program:
    """`program` with the schedule of each kernel whose hash is known; the others keep the default one."""
    steps = tuple(
        replace(step, schedule=schedules.get(step.kernel.hash)) if isinstance(step, Launch) else step
        for step in program.steps
    )
    return replace(program, steps=steps)


def _verify(unit: Unit) -> None:
    """Raise `IRError` if the last stage broke a rule of its level."""
    if unit.program is None:
        graph_level.verify(unit.graph)
    elif unit.compiled is None:
        program_level.verify(unit.program)


def device_in(inputs: Any) -> torch.device:
    """The device of the first tensor in `inputs`; the CPU where there is none."""
    leaves = _pytree.tree_leaves(inputs)
    return next((leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)), torch.device("cpu"))


@contextmanager
def evaluating(model: Run) -> Iterator[None]:
    """Modules of `model` in evaluation mode; afterwards each is as it was."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
