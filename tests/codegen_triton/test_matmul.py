"""Matrix products in Triton: what they compute (interpreted), what is printed, and what their machine code needs."""

from __future__ import annotations

import tempfile

import pytest
import torch
from torch import Tensor

from stages.codegen.triton import check_machine_code, compile_kernels, print_kernel
from stages.ir.dtype import DType
from stages.ir.interpret import interpret_flat
from stages.ir.kernel import IRError, Kernel, verify
from stages.ir.schedule import Schedule
from tests import products
from tests.codegen_triton.checking import Options

F16, F32 = DType.FLOAT16, DType.FLOAT32
SMALL = Schedule(tile_m=16, tile_n=32, tile_k=16, num_warps=2, num_stages=2)
PARTS = Schedule(tile_m=16, tile_n=16, tile_k=16, split_k=3, group=2, launch_pdl=True, num_warps=1)

KERNELS = {
    "plain": lambda: products.product(32, 32, 48),
    "odd": lambda: products.product(19, 37, 53, bias=True, epilogue=products.gelu),
    "narrow": lambda: products.product(5, 7, 9, F16, residual=True),
    "transposed": lambda: products.product(33, 40, 50, F32, transposed=(True, True), residual=True, bias=True),
    "batch": lambda: products.product(20, 18, 33, F16, batch=3, transposed=(False, True), epilogue=products.relu),
    "prologue": lambda: products.product(18, 34, 21, prologue=products.reciprocal, out=F32),
    "heads": lambda: products.heads(21, 3, 8, 19),
    "long": lambda: products.product(17, 20, 333, F32, epilogue=products.relu),
    "masked": lambda: products.masked_rows(9, 20, 33),
}
SCHEDULES = {
    "small": SMALL,
    "tall": Schedule(tile_m=64, tile_n=16, tile_k=64, group=4),
    "split2": Schedule(tile_m=16, tile_n=16, tile_k=16, split_k=2),
    "split3": PARTS,
    "split8": Schedule(tile_m=32, tile_n=16, tile_k=16, split_k=8, launch_pdl=True),
}


def launched(kernel: Kernel, schedule: Schedule, times: int) -> list[Tensor]:
    """The outputs after each of `times` launches of one bound kernel, on the CPU under Triton's interpreter."""
    tensors = products.operands(kernel)
    with tempfile.TemporaryDirectory() as folder:
        bound = compile_kernels([(kernel, schedule)], torch.device("cpu"), Options(folder))[0].bind(tensors)
    found = []
    for _ in range(times):
        tensors[-1].fill_(99.0)
        bound()
        found.append(tensors[-1].clone())
    return found


def reference(kernel: Kernel) -> Tensor:
    """The output in float64."""
    tensors = [tensor.double() for tensor in products.operands(kernel)]
    interpret_flat(kernel, tensors, in_double=True)
    return tensors[-1]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", KERNELS)
def test_values(name, schedule, interpret):
    kernel = KERNELS[name]()
    verify(kernel)
    expected = reference(kernel)
    first, second = interpret(launched, kernel, SCHEDULES[schedule], 2)
    # What is rounded to the type of a buffer, once or twice, relative to the largest result.
    unit = max({F32: 2.0**-20, F16: 2.0**-10, DType.BFLOAT16: 2.0**-7}[buffer.dtype] for buffer in kernel.buffers)
    assert (first.double() - expected).abs().max() <= expected.abs().max() * unit, "not the float64 values"
    assert torch.equal(first, second), "the second launch found the counts of the first"


# ---- what is printed ------------------------------------------------------------------------


def test_masks_only_where_a_tile_does_not_divide():
    assert "mask" not in print_kernel(products.product(64, 64, 64), Schedule(tile_m=32, tile_n=32, tile_k=32))
    assert "row < 60" in print_kernel(products.product(60, 64, 64), Schedule(tile_m=32, tile_n=32, tile_k=32))


def test_a_weight_is_prefetched_by_lines_before_the_wait():
    schedule = Schedule(tile_m=64, tile_n=64, tile_k=64, launch_pdl=True, prefetch=True)
    lines = print_kernel(products.product(128, 256, 768, transposed=(False, True)), schedule).splitlines()
    ahead = next(at for at, line in enumerate(lines) if "device.prefetch(" in line)
    wait = next(at for at, line in enumerate(lines) if "device.gdc_wait()" in line)
    assert ahead < wait < next(at for at, line in enumerate(lines) if "tl.load(" in line)
    assert any("tl.arange(0, 16) * 64" in line for line in lines), "12 lines of 64 elements a column"


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (Schedule(tile_m=48, tile_n=16, tile_k=16), "tile_m is 48, not a power of two"),
        (Schedule(tile_m=16, tile_n=8, tile_k=16), "at least 16 positions"),
        (Schedule(tile_m=16, tile_n=16, tile_k=16, split_k=0), "at least 1"),
        (Schedule(tile_m=16, tile_n=16, tile_k=16, prefetch=True), "nothing to wait for"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(schedule, why):
    with pytest.raises(IRError, match=why):
        print_kernel(products.product(32, 32, 48), schedule)


# ---- machine code ---------------------------------------------------------------------------

MACHINE = {
    "qkv": (lambda: products.product(128, 2304, 768, transposed=(False, True), bias=True), {}),
    "gelu": (lambda: products.product(128, 3072, 768, transposed=(False, True), bias=True, epilogue=products.gelu), {}),
    "split": (lambda: products.product(128, 768, 3072, transposed=(False, True), bias=True), {"split_k": 4}),
    "odd": (lambda: products.product(197, 770, 770, transposed=(False, True), residual=True), {"group": 4}),
}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", MACHINE)
def test_products_of_models_do_not_spill(name, capability):
    build, changes = MACHINE[name]
    pdl = capability >= 90
    schedule = Schedule(tile_m=64, tile_n=64, tile_k=64, num_stages=3, launch_pdl=pdl, prefetch=pdl, **changes)
    found = check_machine_code(build(), schedule, capability)
    assert found["spill_stores"] == found["spill_loads"] == 0, found
    assert found["shared"] >= 2 * 2 * 64 * 64 * 2, "the operands are not staged through shared memory"
