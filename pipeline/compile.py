"""The main function: hands the output of each stage to the next, in the order of `stages:` in the config.

    capture -> precision -> rewrite -> fusion -> buffers -> autotune -> codegen -> runtime

Comes in: a model and the inputs of one call, or one graph of torch.compile. Goes out: something to call. A stage knows
only its own input; what one needs of another (autotune: codegen's builder) is handed over here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from pipeline.config import Config
from pipeline.device import describe, versions
from pipeline.dump import Dump
from pipeline.measuring import measuring_on
from pipeline.precision import capturing, converted, narrowed, products, taking_any
from pipeline.progress import Progress
from pipeline.stages import Stage, plan, service
from stages.ir import graph as graph_level
from stages.ir import program as program_level
from stages.ir.contest import Judge, Verdict
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
    """A compiled model.

    model    what was captured: the user's model, or for bf16 and fp16 its converted copy
    call     takes the user's arguments
    units    the graphs; where the call goes through Dynamo, a new shape of the arguments adds some
    slots    what calls the graphs' executables, in the order of capture
    breaks   where Dynamo had to split the model
    notes    what capture had to say
    eager    the parts of the model that were left to eager
    """

    model: Run
    call: Run
    units: list[Unit]
    slots: tuple[Any, ...] = ()
    breaks: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()
    eager: tuple[str, ...] = ()

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(unit.program for unit in self.units if unit.program is not None)

    @cached_property
    def attributes(self) -> tuple[dict[str, Any], ...]:
        """Those of each module, found once: a walk over the modules costs every call a third of a millisecond."""
        return tuple(vars(module) for module in self.model.modules()) if isinstance(self.model, torch.nn.Module) else ()


def compile_model(model: Run, args: Sequence[Any], kwargs: Mapping[str, Any], session: Session) -> Compilation:
    """Compile `model` for calls like `model(*args, **kwargs)`. It is run in evaluation mode and left as it was.

    args, kwargs   of one call, as the user has them
    """
    config = session.config
    capture = plan(config.stages)[0]
    device = device_in((args, kwargs))
    inner = converted(model, config.precision)
    args, kwargs = narrowed(args, kwargs, config.precision)
    units: list[Unit] = []

    def compile_slot(slot: Any) -> None:
        with products(config.precision):
            units.append(compile_graph(slot.graph, session, len(units)))
        slot.target = units[-1].executable

    with evaluating(inner), torch.no_grad():
        with session.progress.stage(capture.name):
            context = partial(capturing, config.precision, device)
            captured = capture.load()(inner, args, kwargs, config.capture, context)
        for slot in captured.slots:
            compile_slot(slot)
    captured.when_new(compile_slot)
    call = taking_any(captured.call, config.precision)
    told = (tuple(each) for each in (captured.slots, captured.breaks, captured.notes, captured.eager))
    return Compilation(inner, call, units, *told)


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


def _fuse(run: Run, unit: Unit, session: Session) -> Unit:
    return replace(unit, program=run(unit.graph, session.config.fusion, _judge(session, unit.graph.device)))


def _judge(session: Session, device: torch.device) -> Judge | None:
    """Who decides between the library and a kernel: a recipe, which has a schedule for each kernel it took; else the
    autotuner, by timing or, where it times nothing, by its cost model. None where there is nothing to decide."""
    schedules, config = session.schedules, session.config
    if not any(device.type in template.devices for template in config.fusion.templates):
        return None
    if schedules is not None:
        return lambda contests: [
            Verdict(schedules.get(each.template.kernel.hash), "by the recipe") for each in contests
        ]
    if session.stage("autotune") is None or not config.autotune.products:
        return None
    if config.autotune.trials == 1:
        return partial(service("guess"), config=config.autotune, device=device) if device.type == "cuda" else None
    return partial(
        service("judge"),
        config=config.autotune,
        build=_builder(session, device),
        database=_database(session, device),
        default=service("default_schedule"),
        device=device,
        measuring=measuring_on(device, session.progress.waiting),
    )


def _builder(session: Session, device: torch.device) -> Run:
    """Codegen's service to the autotuner."""
    return lambda work: service("build_kernels")(work, device, session.config.codegen)


def _tune(run: Run, unit: Unit, session: Session) -> Unit:
    assert unit.program is not None
    if session.schedules is not None:
        return replace(unit, program=with_schedules(unit.program, session.schedules))
    config, device = session.config, unit.program.device
    build, database = _builder(session, device), _database(session, device)
    measuring = measuring_on(device, session.progress.waiting)
    default = service("default_schedule")
    return replace(unit, program=run(unit.program, config.autotune, build, database, default, measuring))


_HANDOVER: dict[str, _Handover] = {
    "rewrite": _graph_to_graph("rewrite"),
    "precision": _graph_to_graph("precision"),
    "fusion": _fuse,
    "buffers": lambda run, unit, session: replace(unit, program=run(unit.program, session.config.buffers)),
    "autotune": _tune,
    "codegen": lambda run, unit, session: replace(unit, compiled=run(unit.program, session.config.codegen)),
    "runtime": lambda run, unit, session: replace(
        unit, executable=run(unit.program, unit.compiled, session.config.runtime)
    ),
}


def _database(session: Session, device: torch.device) -> Any:
    """Where timings are kept: by device, versions, and what else changes a binary. Untuned, nothing is opened."""
    config = session.config
    tuned = config.autotune.trials > 1
    path = Path(config.autotune.database) if config.autotune.database else service("tuning_path")()
    known = [f"{name} {version}" for name, version in versions().items() if name in ("torch", "triton", "torchweld")]
    flags = [config.codegen.compiler, *config.codegen.flags] if device.type == "cpu" else []
    return service("tuning_database")(
        path if tuned else None, describe(device), ", ".join([*known, *filter(None, flags)])
    )


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
