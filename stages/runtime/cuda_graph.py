"""All steps of a program as one CUDA graph. Comes in: a frame and the inputs of a call. Goes out: the outputs.

A graph replays the addresses it was captured with. Arena, constants, outputs and, where inputs are copied, inputs are
memory of the frame; what operators allocate lies in the graph's private pool. Written against the documented API of
`torch.cuda.CUDAGraph`: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from stages.ir.program import Program
from stages.runtime.config import RuntimeConfig
from stages.runtime.frame import Frame
from stages.runtime.inputs import called_inputs, geometry_of
from stages.runtime.views import alignment_of, empty

# Libraries make handles, workspaces and plans at their first calls, which must not happen during capture.
WARM_UPS = 2
# torch allows one capture at a time in a process.
_capturing = threading.Lock()


class CaptureFailed(Exception):
    """A step could not be captured; the program itself runs."""


def why_not(program: Program) -> str | None:
    """Why `program` cannot be one CUDA graph; None where nothing speaks against trying."""
    if program.device.type != "cuda":
        return f"it runs on {program.device}"
    for entry in program.inputs:
        if entry.kind == "user" and (device := geometry_of(program, entry.name).device).type != "cuda":
            return f"input '{entry.source or entry.name}' is on {device}, whose values a graph would not see change"
    return None


class GraphLane:
    """A frame with a CUDA graph of its steps."""

    def __init__(self, program: Program, frame: Frame, config: RuntimeConfig, note: Callable[[str], None]) -> None:
        kinds = {entry.name: entry.kind for entry in program.inputs}
        self._frame = frame
        self._config = config
        self._note = note
        self._device = program.device
        self._alignment = alignment_of(program.device)
        self._users = {
            place: geometry_of(program, name)
            for place, name in enumerate(called_inputs(program))
            if kinds[name] == "user"
        }
        self._copied: dict[int, Tensor] = {}  # memory of the graph for the user inputs, where they are copied
        self._copies = config.inputs == "copy"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._epoch = -1
        self._addresses: list[int] = []
        self._recaptures = -1  # the first capture is none

    @property
    def memory(self) -> Iterable[Tensor]:
        return (*self._frame.memory, *self._copied.values())

    def run(self, inputs: Sequence[Tensor], epoch: int) -> list[Any]:
        """The outputs of a call. Raises `StepError` where a step fails by itself, `CaptureFailed` where only its
        capture does."""
        if not self._copies:
            self._count_addresses(inputs)
        if self._copies:
            self._copy(inputs)
        if self._graph is None or epoch != self._epoch:
            self._capture(inputs, epoch)
        else:
            self._frame.copy_weights(inputs)
        assert self._graph is not None
        self._graph.replay()
        return self._frame.outputs(inputs)

    def _count_addresses(self, inputs: Sequence[Tensor]) -> None:
        """Drop the graph where the inputs lie elsewhere than those captured; copy them from now on, where that was
        too often or where kernels cannot read them where they are."""
        addresses = [inputs[place].data_ptr() for place in self._users]
        if addresses == self._addresses:
            return
        self._graph = None
        self._addresses = addresses
        self._recaptures += 1
        if any(address % self._alignment for address in addresses) or any(inputs[p].is_neg() for p in self._users):
            self._copies = True
            self._note(
                f"CUDA graph: an input does not begin at a multiple of {self._alignment} bytes: inputs are copied"
            )
        elif self._recaptures > self._config.recaptures:
            self._copies = True
            self._note(
                f"CUDA graph: inputs came at new addresses more than {self._config.recaptures} times "
                "(runtime.recaptures): inputs are copied; pass the same memory each time, or set runtime.inputs=copy"
            )

    def _copy(self, inputs: Sequence[Tensor]) -> None:
        """The user inputs into memory of the graph."""
        if not self._copied and self._users:
            self._graph = None
            with torch.inference_mode(False):
                self._copied = {place: empty(geometry) for place, geometry in self._users.items()}
        for place, own in self._copied.items():
            own.copy_(inputs[place])

    def _capture(self, inputs: Sequence[Tensor], epoch: int) -> None:
        """Warm up on a side stream, then capture there."""
        self._graph = None
        self._frame.load([self._copied.get(place, tensor) for place, tensor in enumerate(inputs)], epoch)
        current, side = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        side.wait_stream(current)
        with _capturing, torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._frame.execute()
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on using the device; only this one is bound to what a capture allows.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._frame.execute()
            except Exception as error:
                with contextlib.suppress(RuntimeError):  # that the capture is void is known already
                    graph.capture_end()
                raise CaptureFailed(str(error)) from error
            try:
                graph.capture_end()
            except RuntimeError as error:
                raise CaptureFailed(str(error)) from error
        current.wait_stream(side)
        self._frame.release(keep_results=True)
        self._graph, self._epoch = graph, epoch
