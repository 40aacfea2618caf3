"""The backend that records: every graph that Dynamo hands over becomes a slot, and a call is kept to learn from.

Comes in: Dynamo's graphs, as to any backend. Goes out: the `Slot`s in the order of capture, and during the recorded
call what went in and out of each graph, by which the flat caller finds its way past Dynamo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import TorchDynamoException

from stages.capture.aot import AotResult, LeftToEager
from stages.capture.breaks import break_of_model
from stages.capture.clean import without_bit
from stages.capture.sizes import BySizes, compile_any
from stages.capture.state import Snapshot
from stages.ir.graph import Graph


class Slot:
    """A graph to call with the list of its user and weight tensors. It runs as it is until `target` is set."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.target: Callable[[list[Any]], Sequence[Any]] | None = None
        self._constants = [entry.tensor for entry in graph.inputs if entry.kind == "constant"]

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if self.target is not None:
            return self.target(arguments)
        outputs: Sequence[Any] = self.graph.module(*map(without_bit, arguments), *self._constants)
        return outputs


@dataclass(frozen=True)
class RecordedCall:
    """One run of a graph: the tensors that Dynamo passed, and what it got."""

    result: AotResult
    arguments: tuple[Any, ...]
    outputs: tuple[Any, ...]


class Recorder:
    """A Dynamo backend; see the head of this file.

    strict    a failure to compile a graph is raised; otherwise the graph runs as Dynamo made it
    snapshot  what keeps the tensors that a graph is about to write to; None while not recording
    refused   why a graph was not compiled, if strict
    eager     why graphs were left to eager, if not strict: what each has, as a clause
    calls     the calls of graphs while recording; `stop()` ends recording
    late      called with each slot made after `stop()`: for a new batch size, or a backward graph traced late
    """

    def __init__(self, sizes_kept: int, strict: bool) -> None:
        self.slots: list[Slot] = []
        self.calls: list[RecordedCall] = []
        self.eager: list[str] = []
        self.snapshot: Snapshot | None = None
        self.refused: Exception | None = None
        self.late: Callable[[Slot], None] | None = None
        self._holders: list[list[AotResult | BySizes]] = []
        self._sizes_kept = sizes_kept
        self._strict = strict

    def __call__(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            compiled = compile_any(module, example_inputs, self._compile_graph, self._sizes_kept)
        except TorchDynamoException:
            raise
        except Exception as error:
            if self._strict:
                self.refused = error
                raise
            self.eager.append(f"it has {error}" if isinstance(error, LeftToEager) else break_of_model(error).reason)
            return module.forward

        holder = [compiled]
        self._holders.append(holder)

        def call(*arguments: Any) -> Any:
            return self._run(holder[0], arguments)

        return call

    def stop(self, for_good: bool) -> None:
        """End the recording; with `for_good`, no graph will be called through Dynamo again.

        Dynamo keeps every backend for the life of the process, and what it compiled about as long, so neither may hold
        on to the graphs, and with them to the model's weights.
        """
        if for_good:
            for holder in self._holders:
                holder.clear()
        self._holders = []
        self.snapshot = None
        self.calls = []
        self.slots = []

    def _compile_graph(self, graph: Graph) -> Slot:
        slot = Slot(graph)
        if self.snapshot is not None:
            self.slots.append(slot)
        elif self.late is not None:
            self.late(slot)
        return slot

    def _run(self, compiled: AotResult | BySizes, arguments: tuple[Any, ...]) -> Any:
        result = compiled.result(arguments) if isinstance(compiled, BySizes) else compiled
        if isinstance(compiled, BySizes):
            arguments = tuple(value for value in arguments if isinstance(value, torch.Tensor))
        snapshot = self.snapshot
        if snapshot is None:
            return result.call(*arguments)
        snapshot.keep([arguments[number] for number in result.mutated(len(arguments))])
        outputs = result.call(*arguments)
        self.calls.append(RecordedCall(result, arguments, tuple(outputs)))
        return outputs
