"""What the project is named for: `relu(a @ b + c)` is one launch on CUDA, counted by the device's own events."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from pipeline.backend import torchweld
from pipeline.optimized import optimize

ROW, MATRIX = (128,), (128, 128)


def launches(function, *inputs) -> list[str]:
    """The kernels that one call runs on the device, after those that compile and warm up."""
    for _ in range(3):
        function(*inputs)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        function(*inputs)
        torch.cuda.synchronize()
    events = (event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    return [event.name for event in events if "Memcpy" not in event.name and "Memset" not in event.name]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [ROW, MATRIX], ids=["row", "matrix"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("way", ["optimize", "decorated"])
def test_relu_of_a_product_and_a_sum(way, dtype, shape, no_tf32):
    torch.manual_seed(0)
    a, b, c = (torch.randn(size, device="cuda", dtype=dtype) for size in (MATRIX, MATRIX, shape))
    if way == "optimize":
        function = optimize(lambda a, b, c: torch.relu(a @ b + c), (a, b, c))
    else:

        @torch.compile(backend=torchweld)
        def function(a, b, c):
            return torch.relu(a @ b + c)

    expected = torch.relu(a.double() @ b.double() + c.double())
    rounding = torch.finfo(dtype).eps
    assert (function(a, b, c).double() - expected).abs().max() <= 4 * rounding * expected.abs().max()
    names = launches(function, a, b, c)
    assert len(names) == 1, names
