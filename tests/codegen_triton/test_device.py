"""The same cases on a CUDA device: `python -m pytest -m gpu tests/codegen_triton`."""

from __future__ import annotations

import weakref

import pytest
import torch

from stages.codegen.triton import compile_kernels
from stages.ir.dtype import DType
from stages.ir.kernel import Kernel
from stages.ir.schedule import Schedule, default_schedule
from tests.codegen_triton import structures
from tests.codegen_triton.cases import CASES
from tests.codegen_triton.checking import Options, assert_close, check, schedules_of

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return Options(str(tmp_path_factory.mktemp("modules")))


def schedules(name: str, kernel: Kernel) -> list[Schedule]:
    """All schedules for kernels that differ in shape; one where only the operator differs."""
    return schedules_of(kernel)[: 1 if name.startswith(("op-", "cast-", "round-")) else None]


@pytest.fixture(scope="module", autouse=True)
def compiled_together(options):
    """Compile the kernels of all cases at once; the tests then find them in Triton's cache."""
    cases = {name: build() for name, build in CASES.items()}
    work = [(case.kernel, schedule) for name, case in cases.items() for schedule in schedules(name, case.kernel)]
    compile_kernels(work, CUDA, options)


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    case = CASES[name]()
    for schedule in schedules(name, case.kernel):
        check(case, schedule, CUDA)


@pytest.mark.parametrize("size", [768, 5000, 20000])
def test_rows_of_models(size):
    case = structures.layer_norm(64, size)
    check(case, default_schedule(case.kernel.rows, case.kernel.row_size, "cuda"), CUDA)


def test_scatter_adds_half_types():
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        check(structures.scattered(dtype), Schedule(tile=8, num_warps=1), CUDA)


def test_a_launch_runs_on_the_current_stream_and_in_a_graph(options):
    case = structures.softmax()
    bound_to = [tensor.to(CUDA) for tensor in (*case.inputs, torch.empty_like(case.expected[0]))]
    schedule = Schedule(tile=2, reduce_tile=16, num_warps=1)
    bound = compile_kernels([(case.kernel, schedule)], CUDA, options)[0].bind(bound_to)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound()
    bound_to[1].zero_()
    graph.replay()
    assert_close(bound_to[1].cpu(), case.expected[0], case.ulps)


def test_a_bound_kernel_keeps_its_memory_until_its_place_is_bound_anew(options):
    case = structures.softmax()
    tensors = [tensor.to(CUDA) for tensor in (*case.inputs, torch.empty_like(case.expected[0]))]
    schedule = Schedule(tile=2, reduce_tile=16, num_warps=1)
    bound = compile_kernels([(case.kernel, schedule)], CUDA, options)[0].bind(tensors)
    alive = [weakref.ref(tensor) for tensor in tensors]
    other = tensors[0].clone()
    del tensors
    assert all(reference() is not None for reference in alive)
    bound.rebind(0, other)
    assert [reference() is not None for reference in alive] == [False, True]


def test_addresses_that_are_not_aligned(options):
    case = structures.gelu()
    memory = torch.zeros(case.inputs[0].numel() + 1, dtype=torch.float16, device=CUDA)
    memory[1:] = case.inputs[0].to(CUDA)
    out = torch.empty_like(memory)
    compiled = compile_kernels([(case.kernel, Schedule(tile=256))], CUDA, options)[0]
    bound = compiled.bind([memory[1:], out[1:]])
    bound()
    assert_close(out[1:].cpu(), case.expected[0], case.ulps, case.floor)
    aligned = torch.empty_like(case.inputs[0], device=CUDA)
    bound.rebind(0, case.inputs[0].to(CUDA))
    bound.rebind(1, aligned)
    bound()
    assert_close(aligned.cpu(), case.expected[0], case.ulps, case.floor)


def test_an_index_out_of_range_is_reported_by_a_later_launch(options):
    case = structures.wild_gather()
    compiled = compile_kernels([(case.kernel, Schedule(tile=8, num_warps=1))], CUDA, options)[0]
    out = torch.empty(3, device=CUDA)
    bound = compiled.bind([*(tensor.to(CUDA) for tensor in case.inputs), out])
    bound()
    torch.cuda.synchronize()
    assert_close(out.cpu(), case.expected[0], 0)
    with pytest.raises(IndexError, match="kernel 'wild'"):
        bound()


def test_resources_are_filled(options):
    case = structures.gelu()
    compiled = compile_kernels([(case.kernel, Schedule(tile=256))], CUDA, options)[0]
    assert compiled.resources["registers"] > 0 and compiled.resources["spills"] == 0
