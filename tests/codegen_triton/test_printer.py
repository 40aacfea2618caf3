"""What the printer writes: golden sources, complete tables, widths of indices, refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from stages.codegen.triton import ops, print_kernel
from stages.codegen.triton.tiling import tiling_of, transposed_axes
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, load, var
from stages.ir.index import linearize, variables
from stages.ir.kernel import IRError, Kernel, Store, normalize
from stages.ir.ops import COMBINES, OPS
from stages.ir.schedule import Schedule
from tests import products
from tests.codegen_triton import structures


def split_product() -> SimpleNamespace:
    """A product with rows that no tile divides, and an epilogue."""
    kernel = products.product(197, 768, 768, transposed=(False, True), bias=True, epilogue=products.relu)
    return SimpleNamespace(kernel=kernel)


GOLDEN = Path(__file__).parent / "golden"
GOLDEN_KERNELS = {
    "gelu": (structures.gelu, Schedule(tile=256)),
    "layer_norm": (structures.layer_norm, Schedule(tile=4, reduce_tile=32, num_warps=2)),
    "layer_norm_looped": (structures.layer_norm, Schedule(reduce_tile=16, persistent=False, num_stages=2)),
    "transposed": (structures.transposed, Schedule(tile=256)),
    "product": (split_product, Schedule(tile_m=64, tile_n=32, tile_k=64, split_k=2, launch_pdl=True, prefetch=True)),
}


@pytest.mark.parametrize("name", GOLDEN_KERNELS)
def test_golden_source(name):
    """The whole source, so that a change of codegen is seen in review. To accept one, write what was printed there."""
    build, schedule = GOLDEN_KERNELS[name]
    assert print_kernel(normalize(build().kernel), schedule) == (GOLDEN / f"{name}.py.txt").read_text()


def test_tables_are_complete():
    assert ops.OPERATORS.keys() == OPS.keys()
    assert ops.REDUCTIONS.keys() == COMBINES
    assert ops.SIGNATURE.keys() == set(DType)
    assert {name for name, _ in ops.SPECIAL} <= OPS.keys()


def copy(rows: int, size: int, dtype: DType = DType.FLOAT32) -> Kernel:
    i, r = Axis("i0", rows), Axis("r0", size)
    index = linearize(variables((i, r)), (size, 1))
    value = load(Buffer("in0", dtype, rows * size), index)
    return Kernel("copy", (i,), (r,), (Store(Buffer("out0", dtype, rows * size), index, value, inner=True),))


def test_indices_are_int32_where_that_is_enough():
    schedule = Schedule(reduce_tile=1024)
    assert "int64" not in print_kernel(copy(1 << 20, 1024), schedule)
    assert "tl.program_id(0).to(tl.int64)" in print_kernel(copy((1 << 21) + 1, 1024), schedule)


def test_only_positions_that_may_be_outside_are_masked():
    whole = print_kernel(copy(64, 32), Schedule(tile=4, reduce_tile=32))
    assert "mask" not in whole and "inside" not in whole
    ragged = print_kernel(copy(63, 31), Schedule(tile=4, reduce_tile=32))
    assert "row_inside & inner_inside" in ragged


def test_an_input_that_shares_memory_with_an_output_is_read_before_any_store():
    i = Axis("i0", 64)
    buffers = [Buffer(name, DType.FLOAT32, 64) for name in ("in0", "in1", "out0", "out1")]
    stores = tuple(Store(buffers[2 + n], var(i), load(buffers[1 - n], var(i))) for n in range(2))
    source = print_kernel(Kernel("swap", (i,), (), stores), Schedule(tile=64))
    assert source.rindex("tl.load") < source.index("tl.store")


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (Schedule(tile=3, reduce_tile=64), "tile is 3, not a power of two"),
        (Schedule(reduce_tile=32), "a persistent row of 50 needs a reduce_tile of at least that many"),
        (Schedule(reduce_tile=64, num_warps=0), "num_warps is 0"),
        (Schedule(reduce_tile=64, num_stages=0), "num_stages is 0"),
        (Schedule(tile=1 << 15, reduce_tile=64), "at most 2147483647 and 1048576 are possible"),
    ],
)
def test_schedules_that_a_kernel_cannot_have_are_refused(schedule, why):
    with pytest.raises(IRError, match=why):
        print_kernel(copy(1 << 16, 50), schedule)


def test_an_atomic_addition_that_triton_has_not_is_refused():
    i = Axis("i0", 8)
    value = load(Buffer("in0", DType.INT8, 8), var(i))
    kernel = Kernel("scatter", (i,), (), (Store(Buffer("out0", DType.INT8, 8), var(i), value, mode="add"),))
    with pytest.raises(IRError, match="out0 of int8"):
        print_kernel(kernel, Schedule(tile=8))


def rearranged(blocks: int) -> Kernel:
    """`blocks` blocks of 2 x 4 pixels with the two sides of each swapped."""
    axes = tuple(Axis(f"i{place}", extent) for place, extent in enumerate((blocks, 4, 2)))
    index = linearize(variables(axes), (8, 1, 4))
    stored = linearize(variables(axes), (8, 2, 1))
    value = load(Buffer("in0", DType.FLOAT32, 8 * blocks), index)
    return Kernel("rearranged", axes, (), (Store(Buffer("out0", DType.FLOAT32, 8 * blocks), stored, value),))


def test_axes_of_a_few_positions_make_no_squares():
    """A program for each block of eight positions would run no faster than one for a thousand."""
    assert transposed_axes(rearranged(1 << 16)) is None
    assert tiling_of(rearranged(1 << 16), Schedule(tile=1024), wide=False).programs == (1 << 19) // 1024
    assert transposed_axes(normalize(structures.transposed().kernel)) is not None
