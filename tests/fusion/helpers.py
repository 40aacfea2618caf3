"""A `Graph` from a function, and a reference executor for a `Program`, both small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import OmegaConf
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from stages.fusion import run
from stages.fusion.config import FusionConfig
from stages.ir.graph import Graph, GraphInput
from stages.ir.graph import verify as verify_graph
from stages.ir.interpret import interpret_flat
from stages.ir.program import BufferSpec, Extern, Launch, Program, TensorRef

CONF = Path(__file__).parents[2] / "conf" / "fusion"


def config(name: str = "default", **changes: Any) -> FusionConfig:
    """`conf/fusion/<name>.yaml` as the pipeline reads it, with changes."""
    values = OmegaConf.merge(OmegaConf.structured(FusionConfig), yaml.safe_load((CONF / f"{name}.yaml").read_text()))
    made = OmegaConf.to_object(OmegaConf.merge(values, changes))
    assert isinstance(made, FusionConfig)
    return made


def graph_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Graph:
    """`function` as functional ATen; all inputs are the user's."""
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in inputs]
    functional = torch.func.functionalize(function, remove="mutations")
    with mode:
        module = make_fx(functional, tracing_mode="real")(*fakes)
    module.graph.eliminate_dead_code()
    output = next(iter(reversed(module.graph.nodes)))
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    graph = Graph(module, [GraphInput(node.name, "user") for node in placeholders], torch.device("cpu"))
    verify_graph(graph)
    return graph


class Machine:
    """Runs a program: kernels by the interpreter, externs by torch on `as_strided` views."""

    def __init__(self, program: Program, inputs: Sequence[torch.Tensor]) -> None:
        self.program = program
        self.memory: dict[str, torch.Tensor] = {}
        for entry, tensor in zip(program.inputs, inputs, strict=True):
            spec = program.buffers[entry.name]
            packed = tensor.layout is not torch.strided
            start = 0 if packed else tensor.storage_offset()
            self.memory[entry.name] = tensor if packed else torch.as_strided(tensor, (spec.size,), (1,), start)

    def run(self) -> list[Any]:
        for step in self.program.steps:
            if isinstance(step, Launch):
                interpret_flat(step.kernel, [self.flat(name) for name in step.buffers])
            else:
                self.extern(step)
        return [self.view(ref) if isinstance(ref, TensorRef) else ref for ref in self.program.outputs]

    def flat(self, name: str) -> torch.Tensor:
        spec: BufferSpec = self.program.buffers[name]
        if name not in self.memory:
            self.memory[name] = torch.full((spec.size,), 99, dtype=torch.float64).to(spec.dtype)
        return self.memory[name]

    def view(self, ref: TensorRef) -> torch.Tensor:
        memory = self.flat(ref.buffer)
        if ref.opaque:
            return memory
        return torch.as_strided(memory, ref.shape, ref.strides, memory.storage_offset() + ref.offset)

    def extern(self, step: Extern) -> None:
        args = fx.node.map_aggregate(step.args, self.actual)
        kwargs = fx.node.map_aggregate(step.kwargs, self.actual)
        if step.out:
            names = [argument.name for argument in step.target._schema.arguments if argument.is_out]
            views = [self.view(ref) for ref in step.outputs]
            places = [view.data_ptr() for view in views]
            step.target(*args, **kwargs, **dict(zip(names, views, strict=True)))
            assert [view.data_ptr() for view in views] == places, f"{step.target} moved its output"
            return
        results = step.target(*args, **kwargs)
        results = results if isinstance(results, (tuple, list)) else (results,)
        for ref, result in zip(step.outputs, results, strict=True):
            if ref is None:
                continue
            spec = self.program.buffers[ref.buffer]
            if spec.role == "extern":
                assert result.stride() == ref.strides and tuple(result.shape) == ref.shape
                self.memory[ref.buffer] = torch.as_strided(result, (spec.size,), (1,), result.storage_offset())
            else:
                self.view(ref).copy_(result)

    def actual(self, item: Any) -> Any:
        return self.view(item) if isinstance(item, TensorRef) else item


def fused(function: Callable[..., Any], *inputs: torch.Tensor, name: str = "default", **changes: Any) -> Program:
    return run(graph_of(function, *inputs), config(name, **changes))


def check(function: Callable[..., Any], *inputs: torch.Tensor, name: str = "default", **changes: Any) -> Program:
    """The program of `function`, whose results are eager's in value, shape, strides and type."""
    program = fused(function, *inputs, name=name, **changes)
    compare(program, function, inputs)
    return program


def compare(program: Program, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> None:
    expected = function(*inputs)
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    found = Machine(program, inputs).run()
    assert len(found) == len(expected)
    for mine, eager in zip(found, expected, strict=True):
        if not isinstance(eager, torch.Tensor):
            assert mine == eager
            continue
        assert (mine.dtype, mine.shape, mine.stride()) == (eager.dtype, eager.shape, eager.stride())
        torch.testing.assert_close(mine, eager, equal_nan=True)
