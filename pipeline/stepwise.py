"""The graphs of a compiled model one by one: what a call gives each of them, and how long each of its steps takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.compile import Compilation, Unit, evaluating
from pipeline.stages import service


def graph_calls(
    compilation: Compilation, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[Unit, list[torch.Tensor]]]:
    """What each graph is called with in `compilation.call(*args, **kwargs)`, in the order of the calls."""
    seen: list[tuple[Unit, list[torch.Tensor]]] = []
    targets = [slot.target for slot in compilation.slots]

    def recording(unit: Unit) -> Any:
        def target(arguments: list[torch.Tensor]) -> Any:
            assert unit.executable is not None
            seen.append((unit, [each.clone() if isinstance(each, torch.Tensor) else each for each in arguments]))
            return unit.executable(arguments)

        return target

    try:
        for slot, unit in zip(compilation.slots, compilation.units):
            slot.target = recording(unit)
        with evaluating(compilation.model):
            compilation.call(*args, **kwargs)
    finally:
        for slot, target in zip(compilation.slots, targets):
            slot.target = target
    return seen


def step_times(
    compilation: Compilation, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device
) -> dict[int, list[float]]:
    """Milliseconds of each step, by the number of the graph. A graph that the call does not reach has none."""
    times: dict[int, list[float]] = {}
    for unit, inputs in graph_calls(compilation, args, kwargs):
        executable: Any = unit.executable
        if unit.number not in times and hasattr(executable, "run_steps"):

            def run(values: Sequence[torch.Tensor], hook: Any, executable: Any = executable) -> None:
                executable.run_steps(values, hook=hook)

            times[unit.number] = service("time_steps")(run, inputs, device)
    return times
