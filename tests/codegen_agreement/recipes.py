"""Random small kernels, as plain data that crosses processes, and how both printers run one.

A recipe is a list of steps over a growing list of values: ("hypot", 3, 5) appends that of values 3 and 5. No step makes
much larger values or steeper slopes than it is given (sums and differences are halved, factors go through tanh), so
that what rounding makes of them stays small; a comparison looks at loaded values alone, the same bits in both.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.codegen import CodegenConfig, cpp, triton
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, Expr, cast, const, load, op, reduce, select, var
from stages.ir.index import linearize, mul, variables
from stages.ir.kernel import Kernel, Store, verify
from stages.ir.schedule import Schedule

UNARY = ("neg", "abs", "tanh", "sin", "cos", "erf", "atan", "asinh")
BINARY = ("add", "sub", "mul", "minimum", "maximum", "hypot")
REDUCTIONS = ("sum", "max", "min")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Recipe:
    """steps are (name, first, second): operators over earlier values, taken modulo their count."""

    rows: int
    row_size: int
    dtype: str
    steps: tuple[tuple[str, int, int], ...]
    inner: bool


def kernel_of(recipe: Recipe) -> Kernel:
    """One output an element of [rows, row_size], and, where the row is an inner loop, one a row."""
    dtype = DType(recipe.dtype)
    compute = dtype.compute
    i, j = Axis("i0", recipe.rows), Axis("r0" if recipe.inner else "i1", recipe.row_size)
    place = linearize(variables((i, j)), (recipe.row_size, 1))
    total = recipe.rows * recipe.row_size
    leaves = [
        load(Buffer("in0", dtype, total), place),
        load(Buffer("in1", dtype, recipe.row_size), var(j)),
        load(Buffer("in2", dtype, 2 * recipe.rows), mul(var(i), 2)),
    ]
    values = [cast(leaf, compute) for leaf in leaves] + [const(0.75, compute)]
    loaded = len(leaves)
    uniform: Expr | None = None
    for name, first, second in recipe.steps:
        left, right = values[first % len(values)], values[second % len(values)]
        if name in REDUCTIONS:
            uniform = reduce(name, (j,), op("tanh", left))
            values.append(op("div", uniform, const(float(recipe.row_size), compute)))
        elif name == "select":
            condition = op("lt", values[first % loaded], values[second % loaded])
            values.append(select(condition, left, right))
        else:
            values.append(_step(name, left, right, compute))
    out = Store(Buffer("out0", dtype, total), place, cast(values[-1], dtype), inner=recipe.inner)
    stores = (out,) if uniform is None else (out, Store(Buffer("out1", compute, recipe.rows), var(i), uniform))
    outer, inner = ((i,), (j,)) if recipe.inner else ((i, j), ())
    return Kernel("recipe", outer, inner, stores)


def _step(name: str, left: Expr, right: Expr, compute: DType) -> Expr:
    if name in UNARY:
        return op(name, left)
    if name in ("add", "sub"):
        return op("mul", op(name, left, right), const(0.5, compute))
    return op(name, left, op("tanh", right) if name == "mul" else right)


def run(kernel: Kernel, schedule: Schedule, printer: str, inputs: list[Tensor]) -> list[Tensor]:
    """What `kernel` stores, through the printer "cpp" or "triton" (interpreted)."""
    room = cpp if printer == "cpp" else triton
    outputs = [torch.zeros(buffer.size, dtype=buffer.dtype.torch) for buffer in kernel.outputs]
    with tempfile.TemporaryDirectory() as folder:
        compiled = room.compile_kernels([(kernel, schedule)], CPU, CodegenConfig(flags=("-O1",), cache_dir=folder))[0]
        compiled.bind([*inputs, *outputs])()
    return outputs


def disagreement(recipe: Recipe, cpp_schedule: Schedule, triton_schedule: Schedule) -> float:
    """The largest difference between the printers, in units of the output's rounding at the size of its values."""
    kernel = kernel_of(recipe)
    verify(kernel)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(buffer.size, generator=generator).to(buffer.dtype.torch) for buffer in kernel.inputs]
    worst = 0.0
    ours = run(kernel, triton_schedule, "triton", inputs)
    for one, other in zip(ours, run(kernel, cpp_schedule, "cpp", inputs), strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        size = other.double().abs().nan_to_num(0.0).max().item() + 1.0
        gap = (one.double() - other.double()).abs().nan_to_num(0.0).max().item()
        worst = max(worst, gap / (size * torch.finfo(other.dtype).eps))
    return worst
