"""The backend behind `torch.compile(model, backend="torchweld")`, without the compiler it serves.

Comes in: `compile_graph`, which makes of a `Graph` something to call with the list of its user and weight tensors.
Goes out: what Dynamo calls with each graph it captured, for inference and for training, static and dynamic sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from stages.capture.aot import CompileGraph, LeftToEager, warn_of_eager
from stages.capture.config import CaptureConfig
from stages.capture.sizes import BySizes, compile_any


def make_backend(
    compile_graph: CompileGraph, config: CaptureConfig | None = None
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A Dynamo backend that compiles through `compile_graph`.

    A graph whose sizes or numbers depend on data runs in eager, with a warning that names the line: Dynamo breaks the
    graph at such values unless it is told to capture them. So does one that AOTAutograd fails on. Errors that
    `compile_graph` raises reach the user as Dynamo reports a backend's errors.
    """
    kept = (config or CaptureConfig()).sizes_kept

    def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            compiled = compile_any(module, example_inputs, compile_graph, kept)
        except LeftToEager as error:
            warn_of_eager(error)
            return module.forward
        return compiled if isinstance(compiled, BySizes) else compiled.call

    return backend
