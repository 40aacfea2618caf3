"""Level 4: a `Program` is a flat list of steps over named buffers, with a place in one arena for each intermediate.

    program on cpu, arena 393216 bytes
      arg0: float32[1, 128, 768] input
      buf0: float32[128, 3072] arena @0
      launch fused_gelu_0(addmm -> buf0)                       # model.py:12
      buf1 = extern aten.addmm.out(arg1, buf0, arg2)           # model.py:13
      return buf1

A `Launch` runs one `Kernel` on whole buffers (a kernel reaches any view of them by its index). An `Extern` calls an
ATen operator (or another torch operator) on views of buffers, `TensorRef`s. Every buffer is flat storage of `size`
elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from stages.ir.dtype import DType
from stages.ir.graph import Graph, GraphInput, Origin
from stages.ir.kernel import IRError, Kernel
from stages.ir.schedule import Schedule


@dataclass(frozen=True)
class BufferSpec:
    """Storage of the program.

    role     "user", "weight", "constant": a placeholder of the graph; "arena": an intermediate at `offset` bytes of the
             arena (None until the buffers stage ran); "output": allocated anew for each call and handed to the caller;
             "extern": allocated by the extern step that makes it, and freed after its last use
    over     of role "extern" and made by a kernel: the buffer whose memory it takes, an extern step's own result
    dtype    torch's, since externs may hold types that the loop IR does not have
    size     elements of storage: one more than the largest offset any view reaches

    The buffer of a placeholder begins at its tensor's first element, wherever that lies in the tensor's storage:
    offsets count from there.
    """

    name: str
    dtype: torch.dtype
    size: int
    role: str
    offset: int | None = None
    over: str | None = None

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class TensorRef:
    """A tensor view of a buffer: what `torch.as_strided` needs. Strides and offset count elements of the buffer.

    dtype is None where it is the buffer's own, else the type its memory is reinterpreted as (`view.dtype`).
    An opaque tensor (a constant in oneDNN's packed layout) has a shape and no strides: it is passed as it is.
    """

    buffer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    dtype: torch.dtype | None = None

    @property
    def opaque(self) -> bool:
        """Whether the buffer holds a tensor without strides."""
        return len(self.strides) != len(self.shape)


@dataclass(frozen=True)
class Launch:
    """Run `kernel` under `schedule`; `buffers` are the actual ones for `kernel.buffers`, in order."""

    kernel: Kernel
    buffers: tuple[str, ...]
    schedule: Schedule | None = None
    origins: tuple[Origin, ...] = ()
    label: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        names = dict(zip(self.kernel.buffers, self.buffers, strict=True))
        return tuple(names[buffer] for buffer in self.kernel.inputs)

    @property
    def writes(self) -> tuple[str, ...]:
        names = dict(zip(self.kernel.buffers, self.buffers, strict=True))
        return tuple(names[buffer] for buffer in self.kernel.outputs)


@dataclass(frozen=True)
class Extern:
    """Call `target` with `args` and `kwargs`, in which tensors stand as `TensorRef`s (also inside lists).

    outputs   one entry a returned tensor: where the result lies, or None for a result nobody uses.
    out       True: `target` is an out-variant; the outputs are passed as its `out` arguments (named by the schema) and
              it allocates nothing. False: it returns new tensors; buffers of role "extern" take them as they are,
              buffers of other roles receive a copy.
    reason    why this step is no kernel of ours, for `explain`
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[TensorRef | None, ...]
    out: bool = False
    origins: tuple[Origin, ...] = ()
    label: str = ""
    reason: str = ""

    @property
    def refs(self) -> tuple[TensorRef, ...]:
        return tuple(tensor_refs((self.args, self.kwargs)))

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(ref.buffer for ref in self.refs))

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(ref.buffer for ref in self.outputs if ref is not None))


Step = Launch | Extern


def tensor_refs(value: Any) -> Iterator[TensorRef]:
    """The `TensorRef`s in nested tuples, lists and dicts."""
    if isinstance(value, TensorRef):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensor_refs(item)
    elif isinstance(value, dict):
        yield from tensor_refs(tuple(value.values()))


@dataclass(frozen=True)
class Decision:
    """One line of `explain`: a fusion made or refused.

    bytes_saved is device-memory traffic, in bytes, that the fusion avoids (0 where refused).
    """

    producer: str
    consumer: str
    fused: bool
    rule: str
    reason: str
    origin: Origin = Origin()
    bytes_saved: int = 0


@dataclass(frozen=True)
class ArenaPlan:
    """What the buffers stage decided, in bytes.

    size          the arena
    lower_bound   the largest sum of buffers alive at one step: no plan is smaller
    unshared      what the arena would take if no memory were shared (strategy `none`)
    strategy      the one whose plan this is
    placements    (buffer, first step, last step, offset, nbytes) of each arena buffer
    """

    size: int
    lower_bound: int
    unshared: int
    strategy: str
    placements: tuple[tuple[str, int, int, int, int], ...]


@dataclass(frozen=True)
class Geometry:
    """How a tensor lies in memory: what a call's input must agree in with the captured one. Strides count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}{list(self.shape)} with strides {list(self.strides)} on {self.device}"


@dataclass(frozen=True)
class Prologue:
    """How the program's constants come from weights, to bring them up to date after a weight changed (see `Graph`).

    module      called with the tensors of `weights`, in order, it returns the tensors of `constants`, in order
    weights     the weights it reads. One that is among the program's inputs too is taken from each call's inputs
    constants   names of the constants; one that is no input of the program is only there for `assumed` to look at
    assumed     name -> check over the constants by name: False where the program no longer holds
    """

    module: Callable[..., Any]
    weights: tuple[GraphInput, ...]
    constants: tuple[str, ...]
    assumed: dict[str, Callable[[dict[str, torch.Tensor]], bool]] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A compiled graph. `inputs` are the graph's, in order; `outputs` are tensors, numbers or None, in order.

    decisions and notes are what `explain` and the report show; traffic_unfused is the device-memory traffic in bytes
    that the same graph has with one kernel an operation.

    geometry   by name, how each user input and weight lay in memory at capture
    prologue   how the constants come from weights; None where no constant does
    values     by name of a buffer, the node of the graph whose value it holds
    """

    device: torch.device
    inputs: tuple[GraphInput, ...]
    buffers: dict[str, BufferSpec]
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]
    plan: ArenaPlan | None = None
    decisions: tuple[Decision, ...] = ()
    notes: tuple[str, ...] = ()
    traffic_unfused: int = 0
    geometry: dict[str, Geometry] = field(default_factory=dict)
    prologue: Prologue | None = None
    values: dict[str, str] = field(default_factory=dict)

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @property
    def externs(self) -> tuple[Extern, ...]:
        return tuple(step for step in self.steps if isinstance(step, Extern))

    def text(self) -> str:
        """The program as text; see the head of this file."""
        arena = f", arena {self.plan.size} bytes" if self.plan else ""
        lines = [f"program on {self.device}{arena}"]
        for spec in self.buffers.values():
            place = "" if spec.offset is None else f" @{spec.offset}"
            place += f" over {spec.over}" if spec.over else ""
            lines.append(f"  {spec.name}: {str(spec.dtype).removeprefix('torch.')}[{spec.size}] {spec.role}{place}")
        for step in self.steps:
            origin = f"  # {step.origins[0]}" if step.origins else ""
            if isinstance(step, Launch):
                what = f"launch {step.kernel.name} {step.kernel.hash}"
                lines.append(f"  {what}({', '.join(step.reads)}) -> {', '.join(step.writes)}{origin}")
            else:
                lines.append(f"  extern {step.target}({', '.join(step.reads)}) -> {', '.join(step.writes)}{origin}")
        lines.append("  return " + ", ".join(r.buffer if isinstance(r, TensorRef) else repr(r) for r in self.outputs))
        return "\n".join(lines) + "\n"


ROLES = ("user", "weight", "constant", "arena", "output", "extern")


def verify(program: Program) -> None:
    """Raise `IRError` unless every step reads what was written before, and writes only what it may."""
    written = {spec.name for spec in program.buffers.values() if spec.role in ("user", "weight", "constant")}
    for name, spec in program.buffers.items():
        if name != spec.name or spec.role not in ROLES:
            raise IRError(f"program: buffer '{name}' is listed as '{spec.name}' with role '{spec.role}'")
    given = frozenset(written)
    for number, step in enumerate(program.steps):
        for name in (*step.reads, *step.writes):
            if name not in program.buffers:
                raise IRError(f"program: step {number} ({step.label}) uses '{name}', which is no buffer")
        for name in step.reads:
            if name not in written:
                raise IRError(f"program: step {number} ({step.label}) reads '{name}' before anything wrote it")
        for name in step.writes:
            if name in given:
                raise IRError(f"program: step {number} ({step.label}) writes '{name}', which is an input")
            written.add(name)
        if isinstance(step, Launch):
            for formal, actual in zip(step.kernel.buffers, step.buffers, strict=True):
                spec = program.buffers[actual]
                if formal.dtype.torch != spec.dtype or formal.size != spec.size:
                    raise IRError(
                        f"program: step {number} ({step.label}) passes {actual} ({spec.dtype}[{spec.size}]) "
                        f"as {formal.name} ({formal.dtype}[{formal.size}])"
                    )
    for ref in tensor_refs(program.outputs):
        if ref.buffer not in written:
            raise IRError(f"program: it returns '{ref.buffer}', which nothing wrote")


def geometry_of(graph: Graph) -> dict[str, Geometry]:
    """`Program.geometry` of a program made of `graph`."""
    values = {node.name: node.meta["val"] for node in graph.module.graph.nodes if node.op == "placeholder"}
    called = [entry.name for entry in graph.inputs if entry.kind != "constant"]
    return {name: Geometry.of(values[name]) for name in called if isinstance(values[name], torch.Tensor)}


def prologue_of(graph: Graph) -> Prologue | None:
    """`Program.prologue` of a program made of `graph`."""
    if graph.prologue is None:
        return None
    weights, constants = tuple(graph.weights_of_prologue), tuple(graph.constants_of_prologue)
    return Prologue(graph.prologue, weights, constants, dict(graph.assumed))


def dtype_of(spec: BufferSpec) -> DType | None:
    """The loop IR's type of a buffer; None where it has none."""
    from stages.ir.dtype import from_torch

    return from_torch(spec.dtype)
