"""Kernels compiled to sm_80 and sm_90 machine code without a GPU: they compile, and nothing spills."""

from __future__ import annotations

import pytest

from stages.codegen.triton import check_machine_code
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, load, op, reduce, var
from stages.ir.index import linearize, variables
from stages.ir.kernel import Kernel, Store, normalize
from stages.ir.ops import COMBINES, OPS
from stages.ir.schedule import Schedule, default_schedule
from tests.codegen_triton import operators, structures


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch, tmp_path_factory):
    """Generated modules and Triton's own cache in a folder of the test run."""
    folder = tmp_path_factory.getbasetemp() / "caches"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def assert_no_spills(kernel: Kernel, schedule: Schedule, capability: int) -> dict[str, int]:
    found = check_machine_code(kernel, schedule, capability)
    assert found["registers"] > 0
    assert found["spill_stores"] == found["spill_loads"] == 0, found
    return found


def every_operator(dtype: DType, names: list[str]) -> Kernel:
    """One store for each operator on `dtype`."""
    axis = Axis("i0", 1000)
    operands = [load(Buffer(f"in{n}", dtype, 1000), var(axis)) for n in range(2)]
    values = [op(name, *operands[: OPS[name].arity]) for name in names]
    stores = [Store(Buffer(f"out{n}", value.dtype, 1000), var(axis), value) for n, value in enumerate(values)]
    return Kernel(f"operators_{dtype}", (axis,), (), tuple(stores))


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if not dtype.is_half])
def test_every_operator_compiles(dtype):
    names = [name for name in OPS if dtype in operators.legal(name) and name != "bounded"]
    assert_no_spills(every_operator(dtype, names), Schedule(tile=128), 90)


@pytest.mark.parametrize("dtype", list(DType))
def test_every_conversion_compiles(dtype):
    axis = Axis("i0", 1000)
    stores = []
    for number, new in enumerate(new for new in DType if new is not dtype):
        value = operators.cast(load(Buffer("in0", dtype, 1000), var(axis)), new)
        stores.append(Store(Buffer(f"out{number}", new, 1000), var(axis), value))
    assert_no_spills(Kernel("conversions", (axis,), (), tuple(stores)), Schedule(tile=256), 80)


@pytest.mark.parametrize("combine", sorted(COMBINES))
def test_every_combine_compiles(combine):
    i, r = Axis("i0", 300), Axis("r0", 50)
    stores = []
    for number, dtype in enumerate(operators.combine_types(combine)):
        place = linearize(variables((i, r)), (50, 1))
        value = reduce(combine, (r,), load(Buffer(f"in{number}", dtype, 15000), place))
        stores.append(Store(Buffer(f"out{number}", value.dtype, 300), var(i), value))
    kernel = Kernel(combine, (i,), (r,), tuple(stores))
    assert_no_spills(kernel, Schedule(tile=2, reduce_tile=64, num_warps=2), 80)
    assert_no_spills(kernel, Schedule(tile=1, reduce_tile=32, num_warps=1, persistent=False), 90)


@pytest.mark.parametrize("name", structures.CASES)
def test_every_structure_compiles(name):
    kernel = structures.CASES[name]().kernel
    schedule = default_schedule(kernel.rows, kernel.row_size, "cuda")
    assert_no_spills(kernel, schedule, 90 if name.startswith("normal") else 80)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("size", [768, 4096, 16384, 32768])
def test_rows_of_models_do_not_spill(size, capability):
    kernel = normalize(structures.layer_norm(3, size).kernel)
    assert_no_spills(kernel, default_schedule(4096, kernel.row_size, "cuda"), capability)


def test_a_transposed_read_goes_through_shared_memory():
    i, j = Axis("i0", 512), Axis("i1", 512)
    value = load(Buffer("in0", DType.FLOAT32, 1 << 18), linearize(variables((i, j)), (1, 512)))
    out = Store(Buffer("out0", DType.FLOAT32, 1 << 18), linearize(variables((i, j)), (512, 1)), value)
    assert assert_no_spills(Kernel("transpose", (i, j), (), (out,)), Schedule(tile=1024), 90)["shared"] > 0
