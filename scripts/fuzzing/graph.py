"""A case as the graph that Dynamo would hand over. Comes in: a case and a device. Goes out: a `GraphModule`.

Its nodes say, as Dynamo's do, what eager gives for FakeTensors ("example_value"). A tensor that the program makes is
made by a node; `fx.symbolic_trace` would make it once, for all calls, which may write to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from scripts.fuzzing.case import Case

_CREATIONS = {torch.tensor, torch.arange, torch.full}


def as_from_dynamo(case: Case, device: str = "cpu") -> fx.GraphModule:
    """The program of `case` with its inputs on `device`."""
    tracer = fx.Tracer()
    with _Recorded(tracer, device):
        graph = tracer.trace(case.function())
    module = fx.GraphModule(tracer.root, graph)
    mode = FakeTensorMode(static_shapes=True)
    fakes = [mode.from_tensor(tensor) for tensor in case.tensors(device)]
    try:
        with mode, torch.no_grad():
            _Remembered(module).run(*fakes)
    except Exception:
        return module  # what is wrong with it, tracing will say
    return module


class _Recorded(TorchFunctionMode):
    """Creations of tensors become nodes, on `device` as under `case.made_on`."""

    def __init__(self, tracer: fx.Tracer, device: str) -> None:
        self.tracer = tracer
        self.placed = {} if device == "cpu" else {"device": torch.device(device)}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _CREATIONS:
            return self.tracer.create_proxy("call_function", function, args, {**self.placed, **kwargs})
        return function(*args, **kwargs)


class _Remembered(fx.Interpreter):
    """Keeps the value of each node."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op != "output":
            n.meta["example_value"] = value
        return value
