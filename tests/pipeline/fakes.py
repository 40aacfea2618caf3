"""Small stages that do nothing but hand on, so that the pipeline is tested without a compiler.

`install(monkeypatch)` puts them into the registry and returns what they were called with. The compiled model runs the
captured graph as it is, so its values are eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch.fx.experimental.proxy_tensor import make_fx

from pipeline.stages import SERVICES, STAGES
from stages.ir.graph import Graph, GraphInput
from stages.ir.program import Program


@dataclass(frozen=True)
class FakeProgram(Program):
    """A program that carries the module it was made of, for the fake stages after fusion to run."""

    module: Any = None


@dataclass
class Calls:
    """What the fakes saw: stage names in order, and the last arguments of each."""

    order: list[str] = field(default_factory=list)
    arguments: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    services: dict[str, Any] = field(default_factory=dict)

    def note(self, name: str, *arguments: Any) -> None:
        self.order.append(name)
        self.arguments[name] = arguments


@dataclass
class Slot:
    graph: Graph
    target: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Verdict:
    passed: bool = True
    error_ratio: float | None = 1.25
    reasons: tuple[str, ...] = ()
    first_wrong_step: str = ""
    task_metrics: dict[str, float] = field(default_factory=dict)


def install(monkeypatch: pytest.MonkeyPatch, passed: bool = True) -> Calls:
    calls = Calls()

    def capture(model: Any, args: Any, kwargs: Any, config: Any, context: Any) -> Any:
        calls.note("capture", model, args, kwargs, config, context)
        names = list(kwargs)
        with context():
            module = make_fx(lambda *leaves: model(*leaves[: len(args)], **dict(zip(names, leaves[len(args) :]))))(
                *args, *kwargs.values()
            )
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        graph = Graph(module, [GraphInput(node.name, "user") for node in places], torch.device("cpu"))
        slot = Slot(graph)

        def call(*given: Any, **named: Any) -> Any:
            assert slot.target is not None
            return slot.target([*given, *named.values()])

        late = lambda compile_slot: calls.services.update(late=compile_slot)  # noqa: E731
        return SimpleNamespace(slots=[slot], breaks=(), eager=(), notes=["captured"], call=call, when_new=late)

    def graph_stage(name: str) -> Callable[..., Any]:
        def run(graph: Graph, config: Any) -> Graph:
            calls.note(name, graph, config)
            return replace(graph, notes=[*graph.notes, name])

        return run

    def fusion(graph: Graph, config: Any, judge: Any = None) -> Program:
        calls.note("fusion", graph, config)
        return FakeProgram(graph.device, tuple(graph.inputs), {}, (), (), module=graph.module)

    def buffers(program: Program, config: Any) -> Program:
        calls.note("buffers", program, config)
        return replace(program, notes=("planned",))

    def autotune(program: Program, config: Any, build: Any, database: Any, default: Any, measuring: Any) -> Program:
        calls.note("autotune", program, config, build, database)
        return program

    def codegen(program: Program, config: Any) -> Any:
        calls.note("codegen", program, config)
        return SimpleNamespace(sources={"kernel.cpp": "int main() {}"}, cached=False, module=program.module)

    def runtime(program: Program, compiled: Any, config: Any) -> Callable[..., Any]:
        calls.note("runtime", program, compiled, config)
        return lambda tensors: compiled.module(*tensors)

    def validate(candidate: Any, eager: Any, reference: Any, inputs: Any, config: Any, **rest: Any) -> Verdict:
        calls.note("validate", candidate, eager, reference, inputs, config, rest)
        return Verdict() if passed else Verdict(False, 7.0, ("output is wrong",), "step 3")

    def benchmark(engines: Any, config: Any, device: Any, **rest: Any) -> Any:
        calls.note("benchmark", engines, config, device, rest)
        results = []
        for name, engine in engines.items():
            engine()
            compiled = rest["compile_times"][name]
            about = {"compile_time": compiled, "samples_ms": (1.5,), "speedup": None, "memory": None}
            results.append(SimpleNamespace(name=name, latency=SimpleNamespace(median_ms=1.5), **about))
        return SimpleNamespace(engines=results, baseline="eager", rounds=1, load="", confidence=0.95)

    runs = {"fusion": fusion, "buffers": buffers, "autotune": autotune, "codegen": codegen, "runtime": runtime}
    runs |= {"capture": capture, "validate": validate, "benchmark": benchmark}
    runs |= {name: graph_stage(name) for name in ("rewrite", "precision")}
    for name, run in runs.items():
        replaced(monkeypatch, name, run)

    def compile_time(cold_seconds: float | None = None, warm_seconds: float | None = None) -> Any:
        return SimpleNamespace(cold_seconds=cold_seconds, warm_seconds=warm_seconds)

    def build_peers(
        names: Any, model: Any, call: Any, device: Any, config: Any, progress: Any, measuring: Any
    ) -> list[Any]:
        about = {"compile_time": compile_time(), "detail": "", "held_bytes": None, "failure": ""}
        return [SimpleNamespace(name=name, engine=lambda: call(model), **about) for name in names]

    def write_report(result: Any) -> None:
        calls.note("write_report", result)
        values = {**result.to_dict(), "stopped_in": result.stopped_in}
        (result.folder / "results.yaml").write_text(yaml.safe_dump(values))

    services: dict[str, Any] = {
        "explain": lambda program: "explained\n",
        "build_kernels": lambda work, device, config: [(len(work), device, config)],
        "tuning_database": lambda path, device, versions: ("database", path, device, versions),
        "tuning_path": lambda: Path("tuned.sqlite"),
        "arena_picture": lambda plan: "<svg/>",
        "float64_reference": lambda model, sets, device, seed: None,
        "build_peers": build_peers,
        "compile_time": compile_time,
        "write_report": write_report,
        "show_report": lambda result, console: calls.note("show_report", result),
        "log_run": lambda result: ["logged"],
        "keep_run": lambda result: (result.folder / "kept").write_text(result.status),
        "make_backend": lambda compile_graph, config: lambda module, inputs: (compile_graph, config, module, inputs),
    }
    for name, function in services.items():
        served(monkeypatch, name, function)
    return calls


def replaced(monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[..., Any]) -> None:
    """Put `run` in place of the stage `name`."""
    monkeypatch.setitem(STAGES, name, replace(STAGES[name], load=lambda: run))


_functions: dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    """The fake services, as attributes of this module: `SERVICES` names functions by module and attribute."""
    if name in _functions:
        return _functions[name]
    raise AttributeError(name)


def served(monkeypatch: pytest.MonkeyPatch, name: str, function: Any) -> None:
    """Put `function` in place of the service `name`."""
    monkeypatch.setitem(_functions, name, function)
    monkeypatch.setitem(SERVICES, name, f"{__name__}:{name}")
