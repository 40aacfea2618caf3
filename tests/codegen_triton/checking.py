"""A case: a kernel, what it is given, and what must come out; how it is run and compared."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.codegen.triton import compile_kernels
from stages.ir.kernel import Kernel, verify
from stages.ir.schedule import Schedule


@dataclass(frozen=True)
class Case:
    """inputs and expected are flat, in the order of `kernel.inputs` and `kernel.outputs`.

    ulps     how many units in the last place of `expected` a float may be off; 0 means equal
    floor    numbers smaller than this have the units of it: they are differences of numbers of that size
    initial  what the outputs hold before (for additions); a pattern of garbage where it is not given
    """

    kernel: Kernel
    inputs: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]
    ulps: int = 0
    initial: tuple[Tensor, ...] = ()
    floor: float = 0.0


@dataclass(frozen=True)
class Options:
    cache_dir: str


def schedules_of(kernel: Kernel) -> list[Schedule]:
    """Schedules that differ in all that the printer reads: tiles that divide and that do not, warps, loops."""
    if not kernel.inner:
        return [Schedule(tile=8, num_warps=1), Schedule(tile=64, num_warps=4)]
    block = 1 << (kernel.row_size - 1).bit_length()
    return [
        Schedule(tile=1, reduce_tile=block, num_warps=1),
        Schedule(tile=4, reduce_tile=2 * block, num_warps=2),
        Schedule(tile=1, reduce_tile=4, persistent=False, num_warps=1),
        Schedule(tile=2, reduce_tile=8, persistent=False, num_warps=4, num_stages=2),
    ]


def garbage(size: int, dtype: torch.dtype) -> Tensor:
    """Memory that is easily told from a result."""
    return (torch.arange(size) % 2 == 0) if dtype is torch.bool else torch.full((size,), 77).to(dtype)


def check(case: Case, schedule: Schedule, device: torch.device) -> None:
    """Run `case` and assert that the outputs are those expected and the inputs are as they were."""
    verify(case.kernel)
    inputs = [tensor.to(device).clone() for tensor in case.inputs]
    kept = dict(zip(case.kernel.inputs, inputs, strict=True))
    outputs = case.initial or tuple(garbage(buffer.size, buffer.dtype.torch) for buffer in case.kernel.outputs)
    written = dict(zip(case.kernel.outputs, [tensor.to(device).clone() for tensor in outputs], strict=True))
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_kernels([(case.kernel, schedule)], device, Options(folder))[0]
        compiled.bind([{**kept, **written}[buffer] for buffer in case.kernel.buffers])()
    for tensor, before in zip(inputs, case.inputs, strict=True):
        assert_close(tensor.cpu(), before, 0)
    for buffer, expected in zip(case.kernel.outputs, case.expected, strict=True):
        assert expected.dtype == buffer.dtype.torch, f"the test expects {expected.dtype} in {buffer}"
        assert_close(written[buffer].cpu(), expected, case.ulps, case.floor)


def assert_close(actual: Tensor, expected: Tensor, ulps: int, floor: float = 0.0) -> None:
    """Equal NaNs, infinities and shapes, and numbers at most `ulps` units in the last place of `expected` apart.

    The unit is that of `floor` where the number is smaller.
    """
    assert actual.shape == expected.shape
    if not expected.dtype.is_floating_point:
        assert torch.equal(actual, expected), f"{actual} is not {expected}"
        return
    nan = expected.isnan()
    assert torch.equal(actual.isnan(), nan), f"NaNs differ: {actual} is not {expected}"
    size = expected[~nan].abs().double()
    digits = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}[expected.dtype]
    smallest = max(torch.finfo(expected.dtype).smallest_normal, floor)
    unit = 2.0 ** (torch.floor(torch.log2(size.clamp(min=smallest))) - digits + 1)
    left, right = actual[~nan].double(), expected[~nan].double()
    equal = left == right
    off = torch.where(equal, 0.0, (left - right).abs() / unit)
    assert bool((off <= ulps).all()), f"off by {off.max().item()} units: {left[off > ulps]} is not {right[off > ulps]}"
