"""Every case under Triton's interpreter, under several schedules, and what a launch does and refuses."""

from __future__ import annotations

import tempfile

import pytest
import torch
from torch import Tensor

from stages.codegen.triton import check_machine_code, compile_kernels
from stages.ir.errors import UserError
from stages.ir.kernel import IRError
from stages.ir.schedule import Schedule
from tests.codegen_triton import structures
from tests.codegen_triton.cases import CASES, run
from tests.codegen_triton.checking import Options

CPU = torch.device("cpu")
SCHEDULE = Schedule(tile=4, num_warps=1)


@pytest.mark.parametrize("name", CASES)
def test_interpreted(name, interpret):
    interpret(run, name, "cpu")


def launch(name: str, tensors: list[Tensor], more: list[tuple[int, Tensor]]) -> list[Tensor]:
    """Run a case on `tensors`, one for each of its buffers, then again after each of `more`, which it binds."""
    kernel = getattr(structures, name)().kernel
    with tempfile.TemporaryDirectory() as folder:
        bound = compile_kernels([(kernel, SCHEDULE)], CPU, Options(folder))[0].bind(tensors)
    bound()
    for position, tensor in more:
        bound.rebind(position, tensor)
        bound()
    return [*tensors, *(tensor for _, tensor in more)]


def test_a_launch_uses_the_memory_bound_last(interpret):
    case = structures.padded()
    other = torch.arange(6, dtype=torch.float16)
    first, second = torch.empty(11, dtype=torch.float16), torch.empty(11, dtype=torch.float16)
    found = interpret(launch, "padded", [*case.inputs, first], [(1, second), (0, other)])
    assert torch.equal(found[1], case.expected[0])
    assert torch.equal(found[2][3:9], other)


def test_only_the_address_of_a_tensor_counts(interpret):
    """A view with an offset, of another shape and type, on the memory that the kernel reads."""
    case = structures.padded()
    memory = torch.cat([torch.zeros(5, dtype=torch.float16), case.inputs[0]])
    view = memory.view(torch.int16)[5:].view(2, 3)
    found = interpret(launch, "padded", [view, torch.empty(11, dtype=torch.float16)], [])
    assert torch.equal(found[1], case.expected[0])


def test_an_index_out_of_range_is_reported_and_reads_no_foreign_memory(interpret):
    case = structures.wild_gather()
    with pytest.raises(IndexError, match="kernel 'wild': an index is out of range"):
        interpret(launch, "wild_gather", [*case.inputs, torch.empty(3)], [])
    found = interpret(reported, "wild_gather")
    assert torch.equal(found, case.expected[0])


def reported(name: str) -> Tensor:
    """What a launch leaves that reports an index; the same kernel then runs with good ones."""
    case = getattr(structures, name)()
    out = torch.empty(case.expected[0].shape)
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_kernels([(case.kernel, SCHEDULE)], CPU, Options(folder))[0]
    with pytest.raises(IndexError):
        compiled.bind([*case.inputs, out])()
    compiled.bind([torch.zeros_like(case.inputs[0]), case.inputs[1], torch.empty_like(out)])()
    return out


def test_tensors_that_do_not_fit_are_refused(interpret):
    case = structures.padded()
    with pytest.raises(IRError, match="takes 2 buffers, not 1"):
        interpret(launch, "padded", list(case.inputs), [])
    with pytest.raises(IRError, match=r"out0 takes 11 elements of float16 on cpu, and is given 20 bytes"):
        interpret(launch, "padded", [*case.inputs, torch.empty(10, dtype=torch.float16)], [])


def build_in(folder: str) -> None:
    """Build a kernel that no other test builds, so that its module is not loaded yet."""
    compile_kernels([(structures.gelu().kernel, Schedule(tile=2))], CPU, Options(folder))


def test_a_cache_folder_that_cannot_be_written_is_named(interpret, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(UserError, match=r"cannot be written to .*file/triton[\s\S]*codegen.cache_dir"):
        interpret(build_in, str(blocked))


def build_twice() -> tuple[bool, str, str, list[str]]:
    kernel = structures.padded().kernel
    with tempfile.TemporaryDirectory() as folder:
        first, second = compile_kernels([(kernel, SCHEDULE)] * 2, CPU, Options(folder))
    return first is second, first.source, first.file_name, list(first.resources)


def test_equal_work_is_built_once(interpret):
    same, source, file_name, resources = interpret(build_twice)
    assert same and resources == []
    assert "def kernel_padded(in0, out0):" in source
    assert file_name.startswith("padded_") and file_name.endswith(".py")


def test_the_cpu_needs_the_interpreter():
    with pytest.raises(UserError, match="do not run on 'cpu'"):
        compile_kernels([(structures.padded().kernel, SCHEDULE)], CPU, Options(""))


def check_interpreted() -> None:
    check_machine_code(structures.padded().kernel, SCHEDULE, 90)


def test_machine_code_needs_a_triton_that_compiles(interpret):
    with pytest.raises(IRError, match="TRITON_INTERPRET is set"):
        interpret(check_interpreted)
