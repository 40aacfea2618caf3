"""How a case is run: through `torch.compile` with our backend, through `optimize`, and in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pipeline.backend import torchweld
from pipeline.optimized import optimize
from tests.semantics.case import Case, Function
from tests.semantics.observe import Likeness, difference, observe


def compiled(case: Case, backend: Any = torchweld, signed_zeros: bool = True) -> str:
    """Where `torch.compile(backend="torchweld")` differs from eager; empty where it does not."""
    torch._dynamo.reset()
    options = {"options": dict(case.overrides)} if backend is torchweld else {}
    return _compare(case, lambda function: torch.compile(function, backend=backend, **options), signed_zeros)


def optimized(case: Case) -> str:
    """Where `pipeline.optimize` differs from eager in evaluation and without gradients."""
    torch._dynamo.reset()

    def engine(function: Function) -> Callable[..., Any]:
        made: list[Any] = []

        def call(*args: Any) -> Any:
            if not made:
                made.append(optimize(function, args, case.overrides))
            return made[0](*args)

        return call

    with torch.no_grad():
        return _compare(case, engine)


def _compare(case: Case, engine: Callable[[Function], Callable[..., Any]], signed_zeros: bool = True) -> str:
    """Each call of the case, in order, by eager and by the engine, each with a function and arguments of its own."""
    theirs, ours = case.make(), engine(case.make())
    for number, inputs in enumerate((case.inputs, *case.more)):
        torch.manual_seed(0)
        eager = observe(theirs, inputs())
        if eager.error is not None and not case.raises:
            return f"the case says nothing: eager raises {type(eager.error).__name__}: {eager.error}"
        torch.manual_seed(0)
        found = difference(observe(ours, inputs()), eager, Likeness(case.exact, case.signed_zeros and signed_zeros))
        if found:
            return f"call {number}: {found}" if case.more else found
    return ""
