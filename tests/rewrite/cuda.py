"""Rewrites that are for CUDA, tried without one: graphs traced on the CPU that say they are for a GPU."""

from __future__ import annotations

import torch

from stages import rewrite
from stages.ir.graph import Graph
from stages.rewrite.config import RewriteConfig
from stages.rewrite.freeze import run_prologue
from tests.graphs import execute, graph_of


def rewritten(module: torch.nn.Module, *inputs: torch.Tensor, passes: list[str] | None = None) -> Graph:
    """The graph of `module` after the rewrites (all of them, or `passes`) for a CUDA device."""
    graph = graph_of(module, *inputs)
    graph.device = torch.device("cuda")
    return rewrite.run(graph, RewriteConfig() if passes is None else RewriteConfig(passes))


def check(graph: Graph, module: torch.nn.Module, *inputs: torch.Tensor, tolerance: float = 1e-10) -> None:
    """The graph gives what eager gives, with eager's strides; `tolerance` is relative and absolute."""
    with torch.no_grad():
        expected = module(*inputs)
    expected = (expected,) if isinstance(expected, torch.Tensor) else expected
    for mine, eager in zip(execute(graph, *inputs), expected, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (eager.dtype, eager.shape, eager.stride())
        torch.testing.assert_close(mine, eager, rtol=tolerance, atol=tolerance, equal_nan=True)


def refresh(graph: Graph) -> None:
    """Compute the constants anew, as the runtime does after a weight changed."""
    if graph.prologue is None:  # what was made of weights are views of them
        return
    values = run_prologue(graph.prologue, graph.weights_of_prologue)
    for name, value in zip(graph.constants_of_prologue, values, strict=True):
        for entry in graph.inputs:
            if entry.name == name:
                entry.tensor = value


def check_changed(graph: Graph, module: torch.nn.Module, *inputs: torch.Tensor, tolerance: float = 1e-10) -> None:
    """`check` after every weight of `module` was changed in place."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dtype.is_floating_point:
                tensor.mul_(0.7).add_(0.01)
    refresh(graph)
    check(graph, module, *inputs, tolerance=tolerance)
