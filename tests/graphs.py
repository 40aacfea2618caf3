"""Graphs for tests, traced without the capture stage, and a plain way to run them."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from stages.ir.graph import Graph, GraphInput, verify


def graph_of(module: torch.nn.Module, *inputs: torch.Tensor) -> Graph:
    """The ATen graph of `module(*inputs)` under no_grad: weights first, then the inputs as "user"."""
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names, mode = list(weights), FakeTensorMode(allow_non_fake_inputs=True)

    def flat(*tensors):
        with torch.no_grad():
            result = functional_call(module, dict(zip(names, tensors)), tensors[len(names) :])
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    with mode:
        traced = make_fx(flat)(*(mode.from_tensor(t.detach()) for t in (*weights.values(), *inputs)))
    placeholders = [node.name for node in traced.graph.nodes if node.op == "placeholder"]
    entries = [GraphInput(p, "weight", name, weights[name]) for p, name in zip(placeholders, names)]
    entries += [GraphInput(p, "user") for p in placeholders[len(names) :]]
    graph = Graph(traced, entries, inputs[0].device if inputs else torch.device("cpu"))
    verify(graph)
    return graph


def execute(graph: Graph, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What the graph returns for `inputs`, its weights and constants as they are."""
    rest = iter(inputs)
    values = [next(rest) if entry.kind == "user" else entry.tensor for entry in graph.inputs]
    with torch.no_grad():
        return tuple(graph.module(*values))


def targets(graph: Graph) -> list[str]:
    """The operators called, in order."""
    return [str(node.target) for node in graph.module.graph.nodes if node.op == "call_function"]
