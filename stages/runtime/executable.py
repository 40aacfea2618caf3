"""What the compiler hands to its user: a program to call. Comes in: tensors. Goes out: the outputs.

A call checks its inputs, takes a lane (a frame, or one with a CUDA graph) that no other call uses, brings constants up
to date with the weights, and runs it. Nothing is allocated but the outputs and what operators that have no out-variant
return. Safe to call from several threads, with autograd on or off, in inference mode, and on any CUDA stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from stages.ir.program import Program
from stages.runtime.config import RuntimeConfig
from stages.runtime.cuda_graph import CaptureFailed, GraphLane, why_not
from stages.runtime.frame import Compiled, Frame, Hook
from stages.runtime.inputs import InputCheck
from stages.runtime.pool import Lane, Pool
from stages.runtime.views import aligned, alignment_of
from stages.runtime.weights import Weights

_NOTHING = contextlib.nullcontext()


class FrameLane:
    """A lane that runs the steps one by one."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    @property
    def memory(self) -> Iterable[Tensor]:
        return self.frame.memory

    def run(self, inputs: Sequence[Tensor], weights: Weights) -> list[Any]:
        try:
            self.frame.load(inputs, weights.observe(inputs))
            self.frame.execute()
            return self.frame.outputs(inputs)
        finally:
            self.frame.release()


class Executable:
    """A compiled program. `notes` says what the user should know of how it runs; it may grow with the calls."""

    # AOTAutograd passes one list to callables that say so.
    _boxed_call = True

    def __init__(self, program: Program, compiled: Compiled, config: RuntimeConfig) -> None:
        self.program = program
        self.config = config
        self.notes: list[str] = []
        self._device = program.device
        self._compiled = compiled
        alignment = alignment_of(program.device)
        with torch.inference_mode(False), torch.no_grad():
            self._constants = {
                entry.name: aligned(entry.tensor, alignment)
                for entry in program.inputs
                if entry.kind == "constant" and entry.tensor is not None
            }
        self._check = InputCheck(program)
        self._weights = Weights(program, self._constants, config.check_weights == "always")
        if lost := self._weights.untracked:
            self._note(f"changes in place of {len(lost)} weights made in inference mode ('{lost[0]}') are not noticed")
        self._stepwise = Pool(lambda: FrameLane(self._frame(False)), program.device)
        self._graphs: Pool | None = None
        if config.cuda_graph and program.device.type == "cuda":
            if (reason := why_not(program, config.inputs)) is None:
                self._graphs = Pool(self._graph_lane, program.device)
            else:
                self._note(f"no CUDA graph: {reason}")
        # The first lane is made now, so that what is wrong with the program shows here.
        (self._graphs or self._stepwise).make_one()

    def __call__(self, inputs: Sequence[Tensor]) -> list[Any]:
        """The outputs of the program: tensors, numbers or None.

        inputs: the tensors of the graph's inputs of kind "user" and "weight", in the graph's order.
        Raises `InputMismatch` naming an input that is not as captured, `StaleProgram` where a weight changed beyond
        what the prologue can bring up to date, `StepError` naming the step that failed.
        """
        with self._context():
            self._check(inputs)
            graphs = self._graphs  # another thread may give them up meanwhile
            if graphs is not None:
                try:
                    return graphs.run(inputs, self._weights)
                except CaptureFailed as error:
                    self._graphs = None
                    self._note(f"no CUDA graph, steps are launched one by one: {error}")
            return self._stepwise.run(inputs, self._weights)

    def run_steps(self, inputs: Sequence[Tensor], until: int | None = None, hook: Hook | None = None) -> list[Any]:
        """Run the first `until` steps (None: all) one by one, without a CUDA graph.

        Returns the outputs if that is all steps, else [].
        hook(number, step, outputs) is called after each step: for a launch, `outputs` are the buffers of `step.writes`
        as flat tensors, for an extern the tensors of `step.outputs`. They are memory of the program, valid during the
        call of the hook. Raises as `__call__` does.
        """
        count = len(self.program.steps) if until is None else min(until, len(self.program.steps))
        with self._context():
            self._check(inputs)
            epoch = self._weights.observe(inputs)
            stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
            lane = self._stepwise.take(stream)
            assert isinstance(lane, FrameLane)
            frame = lane.frame
            try:
                frame.load(inputs, epoch)
                for number in range(count):
                    frame.step(number, hook)
                return frame.outputs(inputs) if count == len(self.program.steps) else []
            finally:
                frame.release()
                self._stepwise.give(lane, stream)

    def _context(self) -> contextlib.AbstractContextManager[Any]:
        """No autograd (out-variants refuse it), no autocast (the graph has its casts), and the program's device.

        Each costs some microseconds to enter, so only those that make a difference are.
        """
        kind = self._device.type
        contexts: list[contextlib.AbstractContextManager[Any]] = []
        if torch.is_grad_enabled():
            contexts.append(torch.no_grad())
        if torch.is_autocast_enabled(kind):
            contexts.append(torch.autocast(kind, enabled=False))
        if kind == "cuda" and self._device.index not in (None, torch.cuda.current_device()):
            contexts.append(torch.cuda.device(self._device))
        if len(contexts) < 2:
            return contexts[0] if contexts else _NOTHING
        stack = contextlib.ExitStack()
        for context in contexts:
            stack.enter_context(context)
        return stack

    def _frame(self, for_graph: bool) -> Frame:
        static = self.config.outputs == "static"
        return Frame(
            self.program,
            self._compiled,
            self._constants,
            static_outputs=static or for_graph,
            copy_outputs=for_graph and not static,
        )

    def _graph_lane(self) -> Lane:
        return GraphLane(self.program, self._frame(True), self.config, self._note)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
