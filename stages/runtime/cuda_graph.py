"""All steps of a program as one CUDA graph. Comes in: a frame and the inputs of a call. Goes out: the outputs.

Kernels at the end that only make outputs are launched after it, into memory that is the caller's (see `Frame`): a copy
of an output would cost another pass over it. A graph replays the addresses it was captured with. Arena, constants,
other outputs and, where inputs are copied, inputs are memory of the frame; what operators allocate lies in the graph's
private pool. Written against the documented API of
`torch.cuda.CUDAGraph`: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from stages.ir.library_flags import cudnn_benchmark
from stages.ir.memory import write
from stages.ir.program import Extern, Program, Step
from stages.ir.words import counted
from stages.runtime.config import RuntimeConfig
from stages.runtime.frame import Frame
from stages.runtime.inputs import called_inputs, geometry_of
from stages.runtime.views import aligned, alignment_of, empty
from stages.runtime.weights import Weights

# Libraries make handles, workspaces and plans at their first calls, which must not happen during capture.
WARM_UPS = 2
# What a large GPU copies (reads and writes) in the 4 us or so that the host takes to launch one step itself.
COPIED_BYTES_A_STEP = 8 << 20
# torch allows one capture at a time in a process.
_capturing = threading.Lock()


class CaptureFailed(Exception):
    """A step could not be captured; the program itself runs."""


def why_not(program: Program, inputs: str = "static") -> str | None:
    """Why `program` cannot or should not be one CUDA graph; None where nothing speaks against trying.

    inputs   `RuntimeConfig.inputs`. A graph of few steps is not worth copying large inputs into its memory
    """
    if program.device.type != "cuda":
        return f"it runs on {program.device}"
    users = [entry.name for entry in program.inputs if entry.kind == "user" and entry.name in program.buffers]
    copied = sum(program.buffers[name].nbytes for name in users)
    if inputs == "copy" and copied > COPIED_BYTES_A_STEP * len(program.steps):
        return (
            f"copying {copied / 2**20:.0f} MiB of inputs takes longer than launching "
            f"{counted(len(program.steps), 'step')} (runtime.inputs=static copies none)"
        )
    for entry in program.inputs:
        if entry.kind == "user" and (device := geometry_of(program, entry.name).device).type != "cuda":
            return f"input '{entry.source or entry.name}' is on {device}, whose values a graph would not see change"
    for step in program.externs:
        if _hands_out_generator(step):
            return f"{step.target} gives the state of the generator, which under a capture lies elsewhere"
    return None


def _hands_out_generator(step: Extern) -> bool:
    """Whether somebody uses the seed or offset that an attention drew its dropout from.

    Outside of a capture they are on the CPU, as the program has it, under one on the GPU (see
    `capture.generator_state`).
    """
    names = [returned.name for returned in getattr(getattr(step.target, "_schema", None), "returns", ())]
    return any(name.startswith("philox_") for name, ref in zip(names, step.outputs) if ref is not None)


def _is_random(step: Step) -> bool:
    """Whether a step draws random numbers. Attention says so of itself, but without dropout it does not."""
    if not isinstance(step, Extern) or torch.Tag.nondeterministic_seeded not in getattr(step.target, "tags", ()):
        return False
    names = [argument.name for argument in step.target._schema.arguments]  # type: ignore[attr-defined]
    if "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    return bool(step.args[place] if len(step.args) > place else step.kwargs.get("dropout_p", 0.0))


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
        self._is_repeatable = not any(map(_is_random, program.steps))
        self._addresses: list[int] = []
        self._recaptures = -1  # the first capture is none

    @property
    def memory(self) -> Iterable[Tensor]:
        return (*self._frame.memory, *self._copied.values())

    def run(self, inputs: Sequence[Tensor], weights: Weights) -> list[Any]:
        """The outputs of a call. Raises `StepError` where a step fails by itself (an index out of range in the call
        before is an error of this one), `CaptureFailed` where only its capture does.

        Looking at every weight takes the host longer than a launch. Where a second run would do no harm, the graph is
        launched as if no weight had changed, and looked at meanwhile; it runs once more where one had.
        """
        self._frame.check_indices()
        moved = not self._copies and self._moved(inputs)
        moved |= self._copies and self._copy(inputs)
        if self._may_repeat and self._graph is not None and not moved and weights.epoch == self._epoch:
            changes = weights.changes
            self._graph.replay()
            weights.observe(inputs)
            if weights.changes == changes:
                return self._frame.outputs(inputs)
        epoch = weights.observe(inputs)
        if self._graph is None or moved or epoch != self._epoch:
            self._capture(inputs, epoch)
        else:
            self._frame.copy_weights(inputs)
        assert self._graph is not None
        self._graph.replay()
        return self._frame.outputs(inputs)

    @property
    def _may_repeat(self) -> bool:
        """Whether running twice is as good as once: nothing draws random numbers, and the graph reads weights where
        they are, in memory that the frame keeps alive."""
        return self._is_repeatable and not self._frame.copies_weights

    def _moved(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the inputs lie elsewhere than at the call before. From now on they are copied where that was so too
        often, or where kernels cannot read them where they are."""
        addresses = [inputs[place].data_ptr() for place in self._users]
        if addresses == self._addresses:
            return False
        self._addresses = addresses
        self._recaptures += 1
        if any(aligned(inputs[place], self._alignment) is not inputs[place] for place in self._users):
            self._copies = True
            self._note(f"CUDA graph: an input does not begin at a multiple of {self._alignment} bytes: it is copied")
        elif self._recaptures > self._config.recaptures:
            self._copies = True
            self._note(
                f"CUDA graph: inputs came at new addresses more than {self._config.recaptures} times "
                "(runtime.recaptures): they are copied; pass the same memory each time, or set runtime.inputs=copy"
            )
        return True

    def _copy(self, inputs: Sequence[Tensor]) -> bool:
        """The user inputs into memory of the graph; whether that memory is new."""
        new = bool(self._users) and not self._copied
        if new:
            with torch.inference_mode(False):
                self._copied = {place: empty(geometry) for place, geometry in self._users.items()}
        for place, own in self._copied.items():
            write(own, inputs[place])
        return new

    def _capture(self, inputs: Sequence[Tensor], epoch: int) -> None:
        """Warm up on a side stream, then capture there."""
        current, side = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        current.synchronize()  # a graph that still runs must not die
        self._graph = None
        self._frame.load([self._copied.get(place, tensor) for place, tensor in enumerate(inputs)], epoch)
        side.wait_stream(current)
        captured = False
        try:
            with _capturing, torch.cuda.stream(side), cudnn_benchmark(self._config.cudnn_benchmark):
                for _ in range(WARM_UPS):
                    self._frame.execute()
                side.synchronize()
                self._frame.check_indices()  # an error of the model's, while nothing takes it for one of the capture
                self._graph, self._epoch = _record(self._frame.execute), epoch
            captured = True
        finally:
            current.wait_stream(side)
            self._frame.release(keep_results=captured)


def _record(action: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """What `action` launches on the current stream, as a graph. Raises `CaptureFailed`.

    `torch.cuda.graph` is not used, since it leaves its own stream the current one where a capture fails.

    cuBLAS works in memory that torch keeps for each stream, and that anyone may free (TorchInductor does whenever it
    captures). The graph would go on writing there. So what there was is given back before the capture, which makes the
    graph's own private pool the place of the workspace, and after it, so that no other work shares the graph's.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    torch._C._cuda_clearCublasWorkspaces()
    # Other threads may go on using the device; only this one is bound to what a capture allows.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        action()
    except Exception as error:
        with contextlib.suppress(RuntimeError):  # that the capture is void is known already
            graph.capture_end()
        _abandon(graph, pool)
        raise CaptureFailed(str(error).splitlines()[0]) from error
    try:
        graph.capture_end()
    except RuntimeError as error:
        _abandon(graph, pool)
        raise CaptureFailed(str(error).splitlines()[0]) from error
    finally:
        torch._C._cuda_clearCublasWorkspaces()
    return graph


# Graphs whose capture failed. The allocator of torch 2.11 may still ask them which streams were theirs.
_abandoned: list[torch.cuda.CUDAGraph] = []


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """Put right what torch leaves undone where a capture fails.

    The allocator goes on as if the capture were under way (and would never again free a tensor that two streams used)
    until allocation to the pool is ended. The random generator, up to torch 2.11 at least, stays in the state that it
    has during a capture ("Offset increment outside graph capture") until one succeeds.
    """
    _abandoned.append(graph)
    with contextlib.suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    scratch = torch.zeros(1, device="cuda")
    torch.cuda.current_stream().synchronize()
    settled = torch.cuda.CUDAGraph()
    with contextlib.suppress(RuntimeError):
        settled.capture_begin(capture_error_mode="thread_local")
        scratch.zero_()
        settled.capture_end()
