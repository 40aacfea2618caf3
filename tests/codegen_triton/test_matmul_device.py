"""Matrix products on a CUDA device: `python -m pytest -m gpu tests/codegen_triton`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipeline import optimize
from stages.codegen.triton import compile_kernels
from stages.ir.dtype import DType
from stages.ir.kernel import Kernel
from stages.ir.schedule import Schedule
from tests import products
from tests.codegen_triton.checking import Options
from tests.codegen_triton.test_matmul import KERNELS, SCHEDULES, reference

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return Options(str(tmp_path_factory.mktemp("modules")))


def fitting(schedule: Schedule) -> Schedule:
    """`schedule` without overlapping launches where the device has none."""
    hopper = torch.cuda.get_device_capability(CUDA) >= (9, 0)
    return schedule if hopper else Schedule(**{**schedule.to_dict(), "launch_pdl": False, "prefetch": False})


def bound(kernel: Kernel, schedule: Schedule, options: Options):
    tensors = [tensor.to(CUDA) for tensor in products.operands(kernel)]
    return compile_kernels([(kernel, fitting(schedule))], CUDA, options)[0].bind(tensors), tensors[-1]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", KERNELS)
def test_values(name, schedule, options):
    kernel = KERNELS[name]()
    expected = reference(kernel)
    run, out = bound(kernel, SCHEDULES[schedule], options)
    run()
    unit = max(
        {DType.FLOAT32: 2.0**-20, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}[buffer.dtype]
        for buffer in kernel.buffers
    )
    assert (out.cpu().double() - expected).abs().max() <= expected.abs().max() * unit


@pytest.mark.parametrize("schedule", [(32, 64, 32, 4), (64, 64, 64, 4), (32, 32, 128, 8)], ids=str)
def test_long_sums_of_float32_are_as_right_as_the_librarys(schedule, options):
    """A chain of 3072 terms rounds at every one: two to three times the library's error."""
    kernel = products.product(128, 768, 3072, dtype=DType.FLOAT32)
    rows, columns, terms, warps = schedule
    chosen = Schedule(tile_m=rows, tile_n=columns, tile_k=terms, num_stages=3, num_warps=warps)
    run, out = bound(kernel, chosen, options)
    run()
    tensors = dict(zip([buffer.name for buffer in kernel.buffers], products.operands(kernel)))
    a, b = tensors["a"].view(128, 3072).to(CUDA), tensors["b"].view(3072, 768).to(CUDA)
    exact = a.double() @ b.double()
    assert (out.view(128, 768).double() - exact).norm() <= 1.5 * ((a @ b).double() - exact).norm()


def test_parts_of_a_sum_give_the_same_bits_every_time_in_a_graph(options):
    """Programs finish in any order; the parts are added in theirs, and no launch finds counts of another."""
    kernel = products.product(128, 768, 3072, transposed=(False, True), bias=True)
    schedule = Schedule(tile_m=64, tile_n=64, tile_k=64, split_k=4, num_stages=4, launch_pdl=True, prefetch=True)
    run, out = bound(kernel, schedule, options)
    run()
    first = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            run()
    for _ in range(10):
        out.fill_(99)
        graph.replay()
        assert torch.equal(out, first)


def test_a_launch_waits_for_the_one_before_it_in_a_graph(options):
    """A chain of products, each of which reads what the one before wrote: overlapping launches keep the order."""
    kernel = products.product(64, 64, 64, DType.FLOAT16, transposed=(False, True))
    schedule = fitting(Schedule(tile_m=16, tile_n=16, tile_k=32, num_warps=1, launch_pdl=True, prefetch=True))
    compiled = compile_kernels([(kernel, schedule)], CUDA, options)[0]
    shift = torch.eye(64, dtype=torch.float16, device=CUDA).roll(1, 0)
    links = [torch.arange(4096, device=CUDA).half().remainder(251)] + [
        torch.zeros(4096).half().to(CUDA) for _ in range(64)
    ]
    chain = [compiled.bind([links[at], shift.flatten(), links[at + 1]]) for at in range(64)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for link in chain:
            link()
    graph.replay()
    assert torch.equal(links[64], links[0]), "64 shifts by one column are none"


def test_a_model_whose_products_are_judged_on_the_device(tmp_path):
    """Whatever wins, the values are eager's, each contest has its times, and a second compilation fights none."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)).to(CUDA).eval()
    x = torch.randn(128, 768, device=CUDA)
    overrides = ["precision=amp", "autotune=quick", f"autotune.database={tmp_path / 'timings.sqlite'}"]
    fast = optimize(model, (x,), overrides)
    with torch.no_grad(), torch.autocast("cuda"):
        expected = model(x)
    assert (fast(x).float() - expected.float()).norm() <= 1e-2 * expected.float().norm()
    times = [line for line in fast.explain().splitlines() if "as one kernel" in line]
    assert len(times) >= 2
    again = optimize(model, (x,), overrides).explain()
    assert [line for line in again.splitlines() if "as one kernel" in line] == times
