"""Which step of a compiled model is the first to be wrong: run after a failed validation.

Comes in: a compilation and the inputs of a call that came out wrong. Goes out: a sentence. The programs are run step by
step, and each value that a step stores is held against the same value of the graph, run by eager at its own precision
and in float64. The graph is the one that fusion was given: what a rewrite got wrong does not show here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pipeline.compile import Compilation, Unit
from pipeline.config import Config
from pipeline.stages import service
from pipeline.stepwise import graph_calls
from stages.ir.program import Launch


def first_wrong_step(compilation: Compilation, args: Sequence[Any], kwargs: Mapping[str, Any], config: Config) -> str:
    """The first wrong step in words, or why none was found. Nothing is raised: the validation has failed already."""
    try:
        for unit, inputs in graph_calls(compilation, args, kwargs):
            wrong = _search(unit, inputs, config)
            if wrong is not None:
                return f"graph {unit.number}: {wrong}"
    except Exception as error:
        return f"the first wrong step was not found: {type(error).__name__}: {error}"
    return "every step is right as the graph after rewriting has it: the fault lies before fusion, or around the graphs"


def _search(unit: Unit, inputs: list[torch.Tensor], config: Config) -> Any:
    given = iter(inputs)
    placeholders = [entry.tensor if entry.kind == "constant" else next(given) for entry in unit.graph.inputs]
    values = _values(unit, inputs)
    return service("first_wrong_step")(
        iter(values.items()),
        service("node_values")(unit.graph.module, placeholders, float64=False),
        service("node_values")(unit.graph.module, placeholders, float64=True),
        config.validate,
        config.precision.mode,
        wanted=values.keys(),
    )


def _values(unit: Unit, inputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of what the steps store, by the name of the graph's node, in the order of the steps."""
    assert unit.program is not None
    executable: Any = unit.executable
    nodes = {node.name: node for node in unit.graph.module.graph.nodes if node.op == "call_function"}
    names = unit.program.values
    found: dict[str, torch.Tensor] = {}

    def hook(number: int, step: Any, outputs: Sequence[torch.Tensor | None]) -> None:
        for buffer, tensor in _stored(step, outputs):
            node = nodes.get(names.get(buffer, ""))
            if node is None or tensor is None:
                continue
            like = node.meta["val"]
            if isinstance(step, Launch):  # flat storage
                tensor = tensor.as_strided(tuple(like.shape), like.stride())
            found[node.name] = tensor.detach().to("cpu", copy=True)

    executable.run_steps(inputs, hook=hook)
    return found


def _stored(step: Any, outputs: Sequence[torch.Tensor | None]) -> Iterator[tuple[str, torch.Tensor | None]]:
    """The buffers that a step stores, each with its tensor."""
    names = step.writes if isinstance(step, Launch) else [ref.buffer if ref is not None else "" for ref in step.outputs]
    return zip(names, outputs, strict=True)
