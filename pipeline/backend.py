"""The torch.compile backend: `torch.compile(model, backend="torchweld", options={"precision": "amp"})`.

Dynamo finds it through the entry point `torch_dynamo_backends`. Comes in: a graph of Dynamo. Goes out: a callable that
runs our program of it. Capture does what is between the two (AOTAutograd); the stages after it are those of `optimize`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

from torch import Tensor, fx

from pipeline.compile import Session, compile_graph, device_in
from pipeline.precision import WHOLE_MODEL, context_of
from pipeline.stages import service
from stages.ir.errors import ConfigError
from stages.ir.graph import Graph


def torchweld(
    gm: fx.GraphModule, example_inputs: Sequence[Tensor], options: Mapping[str, Any] | Sequence[str] | None = None
) -> Callable[..., Any]:
    """Compile `gm`, as Dynamo asks.

    options   overrides of the config: {"precision": "amp", "fusion.max_ops": 8} or ["precision=amp"]
    Raises `UserError` on an option that is not valid.
    """

    from pipeline.configure import as_lines

    session = _session(tuple(as_lines(options or ())))

    def compile_one(graph: Graph) -> Callable[..., Any]:
        executable = compile_graph(graph, session).executable
        assert executable is not None
        return executable

    if session.config.recipe.strict:
        raise ConfigError(
            "recipe.strict",
            "torch.compile hands over one graph at a time, which is not the program of a recipe",
            "leave it out, or use optimize(model, inputs, overrides)",
        )
    precision = session.config.precision
    if precision.mode in WHOLE_MODEL:
        raise ConfigError(
            "precision",
            f"'{precision.mode}' converts the model and its inputs, which a backend of torch.compile cannot",
            f"convert them yourself, or use optimize(model, inputs, ['precision={precision.mode}'])",
        )
    backend: Callable[..., Any] = service("make_backend")(compile_one, session.config.capture)
    # AOTAutograd traces what autocast makes of the graph. In fp32, the default, an autocast of the user's own counts.
    own = precision.mode != "fp32"
    with context_of(precision, device_in(example_inputs)) if own else nullcontext():
        return backend(gm, example_inputs)


@lru_cache(maxsize=8)
def _session(overrides: tuple[str, ...]) -> Session:
    """The session of `overrides`, composed once: a model with breaks asks for it with every graph."""
    from pipeline.configure import session_of

    return session_of(overrides)
