"""A Dynamo graph with symbolic sizes, compiled anew for each set of concrete sizes it is called with.

Comes in: the module and the positions of its symbolic numbers. Goes out: a callable over concrete tensors and ints.
The compiler behind it is static: every extent is a number in its kernels. So each set of sizes gets its own graphs,
and a bounded table keeps the ones used last.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock

from stages.capture.aot import (
    AotResult,
    CompileGraph,
    LeftToEager,
    compile_aot,
    in_eager,
    static_tracing,
    warn_of_eager,
)


def is_symbolic(example_inputs: Sequence[Any]) -> bool:
    """Whether Dynamo passes sizes (or other numbers) as arguments: it does as soon as one of them may vary."""
    return any(not isinstance(value, torch.Tensor) for value in example_inputs)


class BySizes:
    """Calls `module` through AOTAutograd and `compile_graph` with every size a number; keeps `kept` results.

    Numbers among the arguments are part of the key, and so are shape and stride of the tensors, and the value of a
    tensor that the module turns into a number (Dynamo passes Python floats in this way). What else tracing depends on
    (types, devices, gradients, autocast) Dynamo guards.
    """

    def __init__(self, module: fx.GraphModule, compile_graph: CompileGraph, kept: int) -> None:
        self._module = module
        self._compile_graph = compile_graph
        self._kept = kept
        self._scalars = frozenset(
            position for position, node in enumerate(_placeholders(module)) if any(map(_is_item, node.users))
        )
        self._table: OrderedDict[Any, AotResult] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        return self.result(arguments).call(*(value for value in arguments if isinstance(value, torch.Tensor)))

    def result(self, arguments: Sequence[Any]) -> AotResult:
        """What was compiled for these sizes, compiled now if it is not kept. Its `call` takes the tensors only."""
        key = tuple(
            (value.shape, value.stride(), value.item() if position in self._scalars else None)
            if isinstance(value, torch.Tensor)
            else value
            for position, value in enumerate(arguments)
        )
        found = self._look_up(key)
        if found is None:
            # Tracing is not safe in two threads at once; Dynamo takes the same lock.
            with compile_lock:
                found = self._look_up(key)
                if found is None:
                    found = self._compile(arguments)
                    with self._lock:
                        self._table[key] = found
                        if len(self._table) > self._kept:
                            self._table.popitem(last=False)
        return found

    def _look_up(self, key: Any) -> AotResult | None:
        with self._lock:
            found = self._table.get(key)
            if found is not None:
                self._table.move_to_end(key)
            return found

    def _compile(self, arguments: Sequence[Any]) -> AotResult:
        module = with_numbers(self._module, arguments)
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        try:
            with static_tracing():
                return compile_aot(module, tensors, self._compile_graph)
        except LeftToEager as error:
            warn_of_eager(error)
            return in_eager(module)


def with_numbers(module: fx.GraphModule, arguments: Sequence[Any]) -> fx.GraphModule:
    """A copy of `module` with the numbers among `arguments` written into it; its placeholders are the tensors.

    Where the module reads the number in a tensor argument (`item()`), that number is written in as well.
    """
    graph = copy.deepcopy(module.graph)
    copies = [node for node in graph.nodes if node.op == "placeholder"]
    for node, original, value in zip(copies, _placeholders(module), arguments, strict=True):
        # An attribute that AOTAutograd asks for and that copying a graph does not keep.
        node._dynamo_source = getattr(original, "_dynamo_source", None)
        if isinstance(value, torch.Tensor):
            for item in [user for user in node.users if _is_item(user)]:
                _write_in(graph, item, value.item())
        else:
            _write_in(graph, node, value)
    result = fx.GraphModule(module, graph)
    result.meta = dict(module.meta)
    return result


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _is_item(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _write_in(graph: fx.Graph, node: fx.Node, number: Any) -> None:
    """Replace the uses of `node` by `number`, and drop it."""
    for user in list(node.users):
        user.args = fx.node.map_arg(user.args, lambda found: number if found is node else found)
        user.kwargs = fx.node.map_arg(user.kwargs, lambda found: number if found is node else found)
    graph.erase_node(node)


def compile_any(
    module: fx.GraphModule, example_inputs: Sequence[Any], compile_graph: CompileGraph, kept: int
) -> AotResult | BySizes:
    """Compile now if every size is a number, otherwise at the first call with each set of sizes."""
    if is_symbolic(example_inputs):
        return BySizes(module, compile_graph, kept)
    return compile_aot(module, example_inputs, compile_graph)
