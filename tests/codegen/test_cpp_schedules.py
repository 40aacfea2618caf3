"""Every schedule of a kernel gives the same values as eager: widths, unrolling, threads, kept rows or not."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest
import torch

from stages.codegen import compile_kernels
from stages.codegen.cpp import compiler
from stages.codegen.cpp.build import prelude
from stages.codegen.cpp.printer import print_kernel
from stages.ir.dtype import DType
from stages.ir.expr import Buffer, cast, load, op, reduce
from stages.ir.kernel import IRError, Store
from stages.ir.ops import OPS
from stages.ir.schedule import Schedule
from tests.codegen.kernels import (
    F32,
    SCHEDULES,
    axes,
    check,
    column_softmax,
    column_sum,
    flat,
    kernel,
    layer_norm,
    number,
    pointwise,
    random_inputs,
    softmax,
)


def gelu(size: int):
    def compute(x):
        half = op("mul", x, number(0.5))
        return op("mul", half, op("add", op("erf", op("mul", x, number(0.5**0.5))), number(1)))

    return pointwise("gelu", size, compute, F32)


def group_norm():
    """[3, 4 groups of 5 channels, 7 x 9], normalised over a group, scaled by channel."""
    (n, g), (c, p) = axes("i", 3, 4), axes("r", 5, 63)
    at = flat(n, g, c, p)
    x = load(Buffer("in0", F32, 3780), at)
    mean = op("mul", reduce("sum", (c, p), x), number(1 / 315))
    centred = op("sub", x, mean)
    variance = op("mul", reduce("sum", (c, p), op("mul", centred, centred)), number(1 / 315))
    scale = op("mul", op("rsqrt", op("add", variance, number(1e-5))), load(Buffer("in1", F32, 20), flat(g, c)))
    value = op("mul", centred, scale)
    return kernel("group_norm", (n, g), (c, p), Store(Buffer("out0", F32, 3780), at, value, inner=True))


def mean_of_large():
    """Enough rows for several threads, and a sum in blocks."""
    parallel, inner = axes("i", 40), axes("r", 5000)
    value = reduce("sum", inner, load(Buffer("in0", F32, 200_000), flat(*parallel, *inner)))
    return kernel("sum_of_large", parallel, inner, Store(Buffer("out0", F32, 40), flat(*parallel), value))


KERNELS = [
    gelu(1),
    gelu(1023),
    gelu(300_000),
    softmax(1, 1),
    softmax(7, 3),
    softmax(5, 17),
    softmax(64, 1023),
    softmax(4, 128, DType.BFLOAT16),
    layer_norm(6, 96),
    layer_norm(6, 97, residual=True),
    group_norm(),
    column_sum(17, 83, power=2),
    column_softmax(9, 43),
    column_softmax(40, 16),
    mean_of_large(),
]


@pytest.fixture(scope="module")
def compiled(build):
    built = build([(each, schedule) for each in KERNELS for schedule in SCHEDULES])
    return {each.hash: built[n * len(SCHEDULES) : (n + 1) * len(SCHEDULES)] for n, each in enumerate(KERNELS)}


@pytest.mark.parametrize("of", KERNELS, ids=[f"{each.name}-{each.rows}-{each.row_size}" for each in KERNELS])
def test_values(compiled, of):
    half = of.outputs[0].dtype.is_half
    for each in compiled[of.hash]:
        check(each, random_inputs(of), rtol=1e-2 if half else 2e-5, atol=1e-3 if half else 1e-5)


def test_threads_share_out_all_items(compiled):
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            for of in (KERNELS[2], KERNELS[6], KERNELS[-1]):
                for each in compiled[of.hash]:
                    check(each, random_inputs(of), rtol=2e-5)
    finally:
        torch.set_num_threads(before)


def test_a_machine_without_avx_gives_the_same(config):
    # 128-bit registers, no FMA, and float16 by whole-number arithmetic.
    plain = dataclasses.replace(config, flags=("-O1", "-march=x86-64"))
    chosen = [softmax(5, 17), softmax(4, 33, DType.FLOAT16), layer_norm(6, 97, residual=True), column_softmax(9, 43)]
    for each in compile_kernels([(made, Schedule(vector_width=8)) for made in chosen], torch.device("cpu"), plain):
        half = each.kernel.outputs[0].dtype.is_half
        check(each, random_inputs(each.kernel), rtol=1e-3 if half else 2e-5, atol=1e-4 if half else 1e-5)


def all_functions(x):
    """A chain of every kind of function, with other types on the way."""
    for name in ("exp", "expm1", "tanh", "erf", "erfc", "log1p", "sin", "sqrt", "floor", "abs", "neg", "maximum"):
        x = op(name, *[x] * OPS[name].arity)
    return cast(cast(cast(x, DType.FLOAT16), DType.FLOAT64), F32)


@pytest.mark.parametrize("march", ["x86-64-v2", "skylake-avx512", "sapphirerapids"])
def test_code_for_other_machines_compiles(config, march, tmp_path):
    # Compiled only: this machine may not have the instructions.
    other = dataclasses.replace(config, flags=("-O1", f"-march={march}"))
    source = print_kernel(softmax(4, 33, DType.BFLOAT16), Schedule(vector_width=16, unroll=2))
    source += print_kernel(pointwise("all", 96, all_functions, F32), Schedule(vector_width=16, unroll=2))
    text = tmp_path / "kernels.cpp"
    text.write_text(f"{prelude()}\nnamespace weld {{\n{source}\n}}\n")
    command = compiler.command(compiler.find_compiler(other), other, text, tmp_path / "kernels.so")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_persistent_keeps_the_exponentials_and_looped_does_not():
    assert "Scratch<float, 53> keep0" in print_kernel(softmax(9, 53), Schedule(vector_width=8))
    # Neither indices nor what is one operation away from a load are worth a row of their own.
    assert "Scratch" not in print_kernel(group_norm(), Schedule(vector_width=8))
    looped = print_kernel(softmax(9, 53), Schedule(vector_width=8, persistent=False))
    assert "Scratch" not in looped and looped.count("exp(") > looped.count("acc1 = add(")


def test_a_schedule_that_there_is_none_of_is_refused():
    with pytest.raises(IRError, match="vector_width is one of"):
        print_kernel(softmax(9, 53), Schedule(vector_width=3))
