"""Small programs for the tests of buffers and of the runtime: kernels of a few known kinds, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stages.ir import index
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, Expr, load, op, reduce, var
from stages.ir.graph import GraphInput, Origin
from stages.ir.kernel import Kernel, Store
from stages.ir.program import BufferSpec, Geometry, Launch, Program, Step, TensorRef

CPU = torch.device("cpu")


def add_kernel(size: int, flipped: bool = False, name: str = "add") -> Kernel:
    """out0[i] = in0[i] + in1[i], or + in1[size - 1 - i] where `flipped`."""
    axis = Axis("i0", size)
    first, second, out = (Buffer(n, DType.FLOAT32, size) for n in ("in0", "in1", "out0"))
    other: Expr = index.add(index.mul(var(axis), -1), size - 1) if flipped else var(axis)
    value = op("add", load(first, var(axis)), load(second, other))
    return Kernel(name, (axis,), (), (Store(out, var(axis), value),))


def scale_kernel(size: int, factor: float, name: str = "scale") -> Kernel:
    """out0[i] = in0[i] * factor."""
    from stages.ir.expr import const

    axis = Axis("i0", size)
    source, out = Buffer("in0", DType.FLOAT32, size), Buffer("out0", DType.FLOAT32, size)
    value = op("mul", load(source, var(axis)), const(factor, DType.FLOAT32))
    return Kernel(name, (axis,), (), (Store(out, var(axis), value),))


def shift_kernel(rows: int, row_size: int, name: str = "shift") -> Kernel:
    """out0[i, r] = in0[i, r] - max over r of in0[i, r]."""
    outer, inner = Axis("i0", rows), Axis("r0", row_size)
    source, out = (Buffer(n, DType.FLOAT32, rows * row_size) for n in ("in0", "out0"))
    at = index.linearize(index.variables((outer, inner)), (row_size, 1))
    value = load(source, at)
    result = op("sub", value, reduce("max", (inner,), value))
    return Kernel(name, (outer,), (inner,), (Store(out, at, result, inner=True),))


def whole(name: str, *shape: int) -> TensorRef:
    """All of buffer `name` as a contiguous tensor."""
    return TensorRef(name, shape, index.contiguous_strides(shape))


def launch(kernel: Kernel, *buffers: str, line: int = 1) -> Launch:
    return Launch(kernel, buffers, None, (Origin("model.py", line, "x", ""),), kernel.name)


def program(
    buffers: Sequence[tuple[str, str, int]],
    steps: Sequence[Step],
    outputs: Sequence[object],
    tensors: dict[str, torch.Tensor] | None = None,
    geometry: dict[str, Geometry] | None = None,
) -> Program:
    """A float32 program on the CPU. `buffers`: (name, role, size); placeholders among them are inputs, in order, with
    the tensors of `tensors`; user inputs and weights are contiguous vectors unless `geometry` says otherwise."""
    placeholders = [(name, role, size) for name, role, size in buffers if role in ("user", "weight", "constant")]
    flat = {n: Geometry((size,), (1,), torch.float32, CPU) for n, role, size in placeholders if role != "constant"}
    return Program(
        device=CPU,
        inputs=tuple(GraphInput(n, role, f"model.{n}", (tensors or {}).get(n)) for n, role, _ in placeholders),
        buffers={name: BufferSpec(name, torch.float32, size, role) for name, role, size in buffers},
        steps=tuple(steps),
        outputs=tuple(outputs),
        geometry={**flat, **(geometry or {})},
    )
