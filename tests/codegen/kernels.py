"""Small kernels that several tests share, and helpers to write more of them and to run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stages.codegen import CompiledKernel
from stages.ir import index
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, Expr, cast, const, load, op, reduce, var
from stages.ir.kernel import Kernel, Store, normalize, verify
from stages.ir.schedule import Schedule
from tests.codegen.reference import expected

F32 = DType.FLOAT32


def axes(prefix: str, *extents: int) -> tuple[Axis, ...]:
    return tuple(Axis(f"{prefix}{number}", extent) for number, extent in enumerate(extents))


def number(value: float) -> Expr:
    """A float32 literal."""
    return const(value, F32)


def flat(*over: Axis) -> Expr:
    """The row-major position in `over`."""
    return index.linearize(index.variables(over), index.contiguous_strides([axis.extent for axis in over]))


def kernel(name: str, parallel: Sequence[Axis], inner: Sequence[Axis], *stores: Store) -> Kernel:
    made = normalize(Kernel(name, tuple(parallel), tuple(inner), stores))
    verify(made)
    return made


def pointwise(name: str, size: int, compute: Callable[..., Expr], *inputs: DType) -> Kernel:
    """out0[i] = compute(in0[i], in1[i], ...) over `size` elements; halves come in as float32."""
    (axis,) = axes("i", size)
    loads = [load(Buffer(f"in{n}", dtype, size), var(axis)) for n, dtype in enumerate(inputs)]
    value = compute(*(cast(x, x.dtype.compute) for x in loads))
    return kernel(name, (axis,), (), Store(Buffer("out0", value.dtype, size), var(axis), value))


def softmax(rows: int, size: int, dtype: DType = F32) -> Kernel:
    parallel, inner = axes("i", rows), axes("r", size)
    at = flat(*parallel, *inner)
    x = cast(load(Buffer("in0", dtype, rows * size), at), F32)
    shifted = op("exp", op("sub", x, reduce("max", inner, x)))
    value = cast(op("div", shifted, reduce("sum", inner, shifted)), dtype)
    return kernel("softmax", parallel, inner, Store(Buffer("out0", dtype, rows * size), at, value, inner=True))


def layer_norm(rows: int, size: int, residual: bool = False) -> Kernel:
    """Over the last dimension, with weight in1 and bias in2; `residual` adds in3 first and stores the sum too."""
    parallel, inner = axes("i", rows), axes("r", size)
    at = flat(*parallel, *inner)
    x = load(Buffer("in0", F32, rows * size), at)
    if residual:
        x = op("add", x, load(Buffer("in3", F32, rows * size), at))
    mean = op("mul", reduce("sum", inner, x), number(1 / size))
    centred = op("sub", x, mean)
    variance = op("mul", reduce("sum", inner, op("mul", centred, centred)), number(1 / size))
    scale = op("rsqrt", op("add", variance, number(1e-5)))
    weight, bias = (load(Buffer(f"in{n}", F32, size), flat(*inner)) for n in (1, 2))
    value = op("add", op("mul", op("mul", centred, scale), weight), bias)
    stores = [Store(Buffer("out0", F32, rows * size), at, value, inner=True)]
    if residual:
        stores.append(Store(Buffer("out1", F32, rows * size), at, x, inner=True))
    return kernel("layer_norm", parallel, inner, *stores)


def column_sum(rows: int, size: int, power: int = 1) -> Kernel:
    """The sum over dimension 0 of a contiguous [rows, size], of x or of x * x."""
    parallel, inner = axes("i", size), axes("r", rows)
    x = load(Buffer("in0", F32, rows * size), flat(*inner, *parallel))
    total = reduce("sum", inner, x if power == 1 else op("mul", x, x))
    return kernel("column_sum", parallel, inner, Store(Buffer("out0", F32, size), flat(*parallel), total))


def column_softmax(rows: int, size: int) -> Kernel:
    """Softmax over dimension 0 of a contiguous [rows, size]."""
    parallel, inner = axes("i", size), axes("r", rows)
    at = flat(*inner, *parallel)
    x = load(Buffer("in0", F32, rows * size), at)
    shifted = op("exp", op("sub", x, reduce("max", inner, x)))
    value = op("div", shifted, reduce("sum", inner, shifted))
    return kernel("column_softmax", parallel, inner, Store(Buffer("out0", F32, rows * size), at, value, inner=True))


def random_inputs(of: Kernel, seed: int = 0) -> list[Tensor]:
    """Values for each input buffer: normal floats, small whole numbers, random bools."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for buffer in of.inputs:
        if buffer.dtype.is_float:
            made.append(torch.randn(buffer.size, generator=generator).to(buffer.dtype.torch))
        else:
            made.append(torch.randint(0, 2, (buffer.size,), generator=generator).to(buffer.dtype.torch))
    return made


def empty_outputs(of: Kernel) -> list[Tensor]:
    """Memory for each output buffer, filled with 7s so that an element that is not written shows."""
    return [torch.full((buffer.size,), 7).to(buffer.dtype.torch) for buffer in of.outputs]


def run(compiled: CompiledKernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None = None) -> list[Tensor]:
    """What `compiled` makes of `inputs`."""
    outputs = list(outputs) if outputs is not None else empty_outputs(compiled.kernel)
    compiled.bind([*inputs, *outputs])()
    return list(outputs)


def check(compiled: CompiledKernel, inputs: Sequence[Tensor], rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Assert that `compiled` gives what eager gives for its kernel; whole numbers and bools exactly."""
    found = run(compiled, inputs)
    wanted = expected(compiled.kernel, inputs, empty_outputs(compiled.kernel))
    for buffer, a, b in zip(compiled.kernel.outputs, found, wanted, strict=True):
        exact = not buffer.dtype.is_float
        message = f"{compiled.kernel.name} {buffer.name} under {compiled.schedule.text()}"
        torch.testing.assert_close(
            a,
            b,
            rtol=0 if exact else rtol,
            atol=0 if exact else atol,
            equal_nan=True,
            msg=lambda m, t=message: f"{t}: {m}",
        )


# Scalar code, vectors of every width, full and short of a register, unrolled or not, rows kept or not, threads or none.
SCHEDULES = [
    Schedule(threads=1),
    Schedule(unroll=2, persistent=False),
    Schedule(vector_width=4, unroll=4),
    Schedule(vector_width=8, unroll=2, persistent=False),
    Schedule(vector_width=8, threads=2),
    Schedule(vector_width=16, unroll=2, threads=1),
]
