"""Kernels that are matrix products, for tests: shapes and strides, prologue and epilogue, by hand in the loop IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, Expr, cast, const, load, op, reduce, select
from stages.ir.index import contiguous_strides, linearize, variables
from stages.ir.kernel import Kernel, Store, normalize

Function = Callable[[Expr], Expr]
F32 = DType.FLOAT32


def relu(value: Expr) -> Expr:
    return op("maximum", value, const(0.0, F32))


def gelu(value: Expr) -> Expr:
    """x * 0.5 * (1 + erf(x / sqrt 2))."""
    inside = op("erf", op("mul", value, const(0.5**0.5, F32)))
    return op("mul", op("mul", value, const(0.5, F32)), op("add", inside, const(1.0, F32)))


def reciprocal(value: Expr) -> Expr:
    """1 / x: an operand that is no number where nothing is loaded."""
    return op("div", const(1.0, F32), value)


def product(
    m: int,
    n: int,
    k: int,
    dtype: DType = DType.BFLOAT16,
    batch: int = 1,
    transposed: tuple[bool, bool] = (False, False),
    prologue: Function | None = None,
    swapped: bool = False,
    epilogue: Function | None = None,
    bias: bool = False,
    residual: bool = False,
    out: DType | None = None,
) -> Kernel:
    """out[b, m, n] = epilogue(sum over k of prologue(in0[b, m, k]) * in1[b, k, n] + bias[n]) + residual[b, m, n].

    swapped      the prologue is of in1
    transposed   whether the first (as [b, k, m]) and second (as [b, n, k]) operand lie the other way round
    """
    out = out or dtype
    axes = (Axis("i0", batch), Axis("i1", m), Axis("i2", n))
    row = Axis("r0", k)
    b, i, j = variables(axes)
    (r,) = variables((row,))
    first = _element("a", dtype, (batch, m, k), (b, i, r), transposed[0])
    second = _element("b", dtype, (batch, k, n), (b, r, j), transposed[1])
    if prologue is not None and swapped:
        second = cast(cast(prologue(second), dtype), dtype.compute)
    elif prologue is not None:
        first = cast(cast(prologue(first), dtype), dtype.compute)
    value: Expr = reduce("sum", (row,), op("mul", first, second))
    if bias:
        value = op("add", value, cast(load(Buffer("bias", dtype, n), j), dtype.compute))
    if epilogue is not None:
        value = epilogue(value)
    place = linearize((b, i, j), contiguous_strides((batch, m, n)))
    if residual:
        value = op("add", value, cast(load(Buffer("residual", dtype, batch * m * n), place), dtype.compute))
    store = Store(Buffer("out0", out, batch * m * n), place, cast(value, out))
    return normalize(Kernel("product", axes, (row,), (store,)))


def _element(name: str, dtype: DType, shape: Sequence[int], position: Sequence[Expr], transposed: bool) -> Expr:
    batch, down, across = shape
    strides = (down * across, 1, down) if transposed else (down * across, across, 1)
    return cast(load(Buffer(name, dtype, batch * down * across), linearize(position, strides)), dtype.compute)


def heads(tokens: int, count: int, width: int, n: int) -> Kernel:
    """The output projection of attention: in0 is [count, tokens, width], multiplied as [tokens, count * width]."""
    i, j, h, d = Axis("i0", tokens), Axis("i1", n), Axis("r0", count), Axis("r1", width)
    rows, columns, head, inside = variables((i, j, h, d))
    first = load(
        Buffer("a", DType.FLOAT16, tokens * count * width), linearize((head, rows, inside), (tokens * width, width, 1))
    )
    second = load(
        Buffer("b", DType.FLOAT16, count * width * n), linearize((columns, head, inside), (count * width, width, 1))
    )
    value = reduce("sum", (h, d), op("mul", cast(first, F32), cast(second, F32)))
    store = Store(Buffer("out0", F32, tokens * n), linearize((rows, columns), (n, 1)), value)
    return normalize(Kernel("heads", (i, j), (h, d), (store,)))


def masked_rows(m: int, n: int, k: int) -> Kernel:
    """A first operand that is loaded only where its row is below 5, and a select in the epilogue."""
    i, j, r = Axis("i0", m), Axis("i1", n), Axis("r0", k)
    rows, columns, term = variables((i, j, r))
    below = op("lt", rows, const(5, DType.INT64))
    first = load(Buffer("a", F32, m * k), linearize((rows, term), (k, 1)), below, 2.0)
    second = load(Buffer("b", F32, k * n), linearize((term, columns), (n, 1)))
    value = reduce("sum", (r,), op("mul", first, second))
    value = select(op("gt", value, const(0.0, F32)), value, const(-1.0, F32))
    return normalize(
        Kernel("masked", (i, j), (r,), (Store(Buffer("out0", F32, m * n), linearize((rows, columns), (n, 1)), value),))
    )


def operands(kernel: Kernel, seed: int = 0) -> list[Tensor]:
    """A flat tensor for each buffer of `kernel`: normal numbers, away from zero, and garbage for the outputs."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for buffer in kernel.buffers:
        noise = torch.randn(buffer.size, generator=generator)
        noise = noise + 0.25 * noise.sign()
        found.append((noise if buffer in kernel.inputs else torch.full_like(noise, 77.0)).to(buffer.dtype.torch))
    return found
