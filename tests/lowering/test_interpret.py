"""The reference interpreter, against arithmetic by hand."""

import pytest
import torch

from stages.ir import index
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, cast, const, load, op, reduce, select, var
from stages.ir.interpret import COMBINES, OPERATORS, interpret, interpret_flat
from stages.ir.kernel import Kernel, Store
from stages.ir.ops import COMBINES as COMBINE_NAMES
from stages.ir.ops import OPS

ROW, COLUMN = Axis("i", 2), Axis("r", 3)
IN, OUT, SHORT = Buffer("in0", DType.FLOAT32, 6), Buffer("out0", DType.FLOAT32, 6), Buffer("out0", DType.FLOAT32, 2)
POSITION = index.linearize(index.variables((ROW, COLUMN)), (3, 1))


def run(store: Store, *inputs: torch.Tensor, inner: tuple[Axis, ...] = (COLUMN,), **options: bool) -> torch.Tensor:
    kernel = Kernel("k", (ROW,), inner, (store,))
    out = torch.full((store.buffer.size,), -1, dtype=store.buffer.dtype.torch)
    interpret_flat(kernel, [*inputs, out], **options)
    return out


def test_every_operator_and_combine_has_a_meaning():
    assert set(OPERATORS) == set(OPS)
    assert set(COMBINES) == set(COMBINE_NAMES)


def test_a_reduction_is_uniform_along_the_row_and_its_axis_is_bound_again_by_the_store():
    value = load(IN, POSITION)
    out = run(Store(OUT, POSITION, op("sub", value, reduce("max", (COLUMN,), value)), inner=True), torch.arange(6.0))
    assert out.tolist() == [-2, -1, 0, -2, -1, 0]


def test_a_row_store_runs_once_a_row():
    out = run(Store(SHORT, var(ROW), reduce("sum", (COLUMN,), load(IN, POSITION))), torch.arange(6.0))
    assert out.tolist() == [3, 12]


def test_argmax_takes_the_first_of_equals_and_nan_before_numbers():
    places = Buffer("out0", DType.INT64, 2)
    store = Store(places, var(ROW), reduce("argmax", (COLUMN,), load(IN, POSITION)))
    assert run(store, torch.tensor([1.0, 4, 4, 9, torch.nan, torch.nan])).tolist() == [1, 1]


def test_a_masked_load_does_not_touch_memory():
    shifted = index.add(POSITION, -1)
    inside = op("ge", shifted, index.number(0))
    out = run(Store(OUT, POSITION, load(IN, shifted, inside, 7.5), inner=True), torch.arange(6.0))
    assert out.tolist() == [7.5, 0, 1, 2, 3, 4]
    with pytest.raises(IndexError, match="in0"):
        run(Store(OUT, POSITION, load(IN, shifted), inner=True), torch.arange(6.0))


def test_a_user_index_counts_from_the_end_and_is_checked():
    picks = Buffer("in1", DType.INT64, 2)
    at = index.bounded(load(picks, var(ROW)), 6)
    store = Store(SHORT, var(ROW), load(IN, at))
    kernel = Kernel("k", (ROW,), (), (store,))
    out = torch.zeros(2)
    interpret(kernel, {"in0": torch.arange(6.0), "in1": torch.tensor([-1, 2]), "out0": out})
    assert out.tolist() == [5, 2]
    with pytest.raises(IndexError, match="index 6"):
        interpret(kernel, {"in0": torch.arange(6.0), "in1": torch.tensor([0, 6]), "out0": out})


def test_each_operator_runs_in_its_type_unless_in_double():
    half = Buffer("in0", DType.BFLOAT16, 2)
    tiny = op("add", cast(load(half, var(ROW)), DType.FLOAT32), const(1e-9, DType.FLOAT32))
    store = Store(SHORT, var(ROW), tiny)
    ones = torch.ones(2, dtype=torch.bfloat16)
    assert run(store, ones, inner=()).tolist() == [1, 1]
    kernel = Kernel("k", (ROW,), (), (store,))
    exact = torch.zeros(2, dtype=torch.float64)
    interpret_flat(kernel, [ones, exact], in_double=True)
    assert exact.tolist() == [1 + 1e-9] * 2


def test_atomic_adds_collect_and_a_doubled_set_is_refused():
    one = Buffer("out0", DType.FLOAT32, 1)
    added = Store(one, index.number(0), load(IN, POSITION), inner=True, mode="add")
    assert run(added, torch.arange(6.0)).tolist() == [14]  # -1 was there
    with pytest.raises(IndexError, match="twice"):
        run(Store(one, index.number(0), load(IN, POSITION), inner=True), torch.arange(6.0))


def test_select_takes_the_side_of_its_condition():
    value = load(IN, POSITION)
    clipped = select(op("gt", value, const(2, DType.FLOAT32)), const(2, DType.FLOAT32), value)
    assert run(Store(OUT, POSITION, clipped, inner=True), torch.arange(6.0)).tolist() == [0, 1, 2, 2, 2, 2]
