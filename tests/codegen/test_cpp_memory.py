"""How C++ kernels reach memory: broadcasts, transposes, steps, masks, gathers, scatters, index checks, and sharing."""

from __future__ import annotations

import pytest
import torch

from stages.ir import index
from stages.ir.dtype import DType
from stages.ir.expr import Buffer, cast, const, load, op, reduce, select, var
from stages.ir.kernel import IRError, Store
from tests.codegen.kernels import (
    F32,
    SCHEDULES,
    axes,
    check,
    empty_outputs,
    flat,
    kernel,
    layer_norm,
    number,
    random_inputs,
    run,
    softmax,
)

I64 = DType.INT64


def broadcast():
    """out[a, b, c] = x[a, b, c] * scale[b] + bias[c] + one scalar"""
    a, b, c = axes("i", 3, 5, 11)
    x = load(Buffer("in0", F32, 165), flat(a, b, c))
    value = op("mul", x, load(Buffer("in1", F32, 5), flat(b)))
    value = op("add", op("add", value, load(Buffer("in2", F32, 11), flat(c))), load(Buffer("in3", F32, 1), flat()))
    return kernel("broadcast", (a, b, c), (), Store(Buffer("out0", F32, 165), flat(a, b, c), value))


def transposed(dtype: DType = F32):
    """out[a, b] = x[b, a] + y[a, b]"""
    a, b = axes("i", 19, 37)
    value = op("add", load(Buffer("in0", dtype, 703), flat(b, a)), load(Buffer("in1", dtype, 703), flat(a, b)))
    return kernel("transposed", (a, b), (), Store(Buffer("out0", dtype, 703), flat(a, b), value))


def stepped():
    """Every third element, backwards, to every second place."""
    (i,) = axes("i", 29)
    x = load(Buffer("in0", F32, 87), index.add(index.mul(var(i), -3), 86))
    return kernel("stepped", (i,), (), Store(Buffer("out0", F32, 58), index.mul(var(i), 2), op("neg", x)))


def padded():
    """Zero padding of [9, 13] by 2 and 3 on each side, other = -1, and of bools."""
    a, b = axes("i", 13, 19)
    inside = op("and", op("ge", var(a), const(2, I64)), op("lt", var(a), const(11, I64)))
    inside = op("and", inside, op("and", op("ge", var(b), const(3, I64)), op("lt", var(b), const(16, I64))))
    at = index.add(index.mul(var(a), 13), var(b), -2 * 13 - 3)
    x = load(Buffer("in0", F32, 117), at, inside, -1)
    flag = load(Buffer("in1", DType.BOOL, 117), at, inside, True)
    return kernel("padded", (a, b), (), Store(Buffer("out0", F32, 247), flat(a, b), select(flag, x, number(5))))


def step_masked():
    """A masked load along a column, and one under a mask that is uniform along the lanes."""
    a, b = axes("i", 6, 21)
    row = op("lt", var(a), const(4, I64))
    x = load(Buffer("in0", F32, 126), flat(b, a), op("ne", var(b), const(20, I64)), 3)
    y = load(Buffer("in1", F32, 126), flat(a, b), row, -2)
    z = load(Buffer("in2", F32, 6), var(a), op("lt", var(b), const(9, I64)), 1)
    return kernel("step_masked", (a, b), (), Store(Buffer("out0", F32, 126), flat(a, b), op("add", op("mul", x, y), z)))


def embedding(dtype: DType = F32, width: int = 24):
    """out[t, c] = table[ids[t], c], ids checked against 10 rows"""
    t, c = axes("i", 7, width)
    row = index.bounded(load(Buffer("in0", I64, 7), var(t)), 10)
    x = load(Buffer("in1", dtype, 10 * width), index.add(index.mul(row, width), var(c)))
    return kernel("embedding", (t, c), (), Store(Buffer("out0", dtype, 7 * width), flat(t, c), x))


def lookup():
    """out[i] = table[ids[i]], lane by lane"""
    (i,) = axes("i", 45)
    row = index.bounded(load(Buffer("in0", I64, 45), var(i)), 10)
    return kernel("lookup", (i,), (), Store(Buffer("out0", F32, 45), var(i), load(Buffer("in1", F32, 10), row)))


def repeated():
    """out[i] = x[i // 3] + y[i % 7]: an index that is no step"""
    (i,) = axes("i", 47)
    x = load(Buffer("in0", F32, 16), index.floordiv(var(i), 3))
    y = load(Buffer("in1", F32, 7), index.mod(var(i), 7))
    return kernel("repeated", (i,), (), Store(Buffer("out0", F32, 47), var(i), op("add", x, y)))


def causal():
    """Softmax of [5, 23, 23] where the column is at most the row; the row number is a value."""
    (b, s), (t,) = axes("i", 5, 23), axes("r", 23)
    at = flat(b, s, t)
    x = select(op("le", var(t), var(s)), load(Buffer("in0", F32, 5 * 529), at), number(-float("inf")))
    shifted = op("exp", op("sub", x, reduce("max", (t,), x)))
    value = op("div", shifted, reduce("sum", (t,), shifted))
    return kernel("causal", (b, s), (t,), Store(Buffer("out0", F32, 5 * 529), at, value, inner=True))


def scalar():
    """0-d: no loop at all"""
    value = op("mul", load(Buffer("in0", F32, 1), flat()), number(0.1))
    return kernel("scalar", (), (), Store(Buffer("out0", F32, 1), flat(), value))


KERNELS = [
    broadcast(),
    transposed(),
    transposed(DType.UINT8),
    stepped(),
    padded(),
    step_masked(),
    repeated(),
    causal(),
    scalar(),
]


@pytest.fixture(scope="module")
def compiled(build):
    chosen = [SCHEDULES[n] for n in (0, 2, 3)]
    built = build([(each, schedule) for each in KERNELS for schedule in chosen])
    return {each.hash: built[n * len(chosen) : (n + 1) * len(chosen)] for n, each in enumerate(KERNELS)}


@pytest.mark.parametrize("of", KERNELS, ids=[each.name for each in KERNELS])
def test_access(compiled, of):
    for each in compiled[of.hash]:
        check(each, random_inputs(of))


@pytest.mark.parametrize("dtype", [F32, DType.BFLOAT16, DType.BOOL, I64], ids=str)
def test_embedding_takes_negative_indices_and_refuses_those_out_of_range(build, dtype):
    made = embedding(dtype)
    table = random_inputs(made)[1]
    good = torch.tensor([0, 9, -1, -10, 4, 4, 2])
    for each in build([(made, schedule) for schedule in (SCHEDULES[0], SCHEDULES[3])]):
        assert torch.equal(run(each, [good, table])[0].view(7, 24), table.view(10, 24)[good])
        for bad in (10, -11, 1 << 40, -(1 << 62)):
            ids = good.clone()
            ids[3] = bad
            with pytest.raises(IndexError, match="kernel 'embedding'"):
                run(each, [ids, table])
        run(each, [good, table])  # a failure is not remembered


def test_lookup_checks_each_lane_and_none_that_is_not_live(build):
    made = lookup()
    table = torch.randn(10)
    ids = torch.arange(45) % 20 - 10
    for each in build([(made, schedule) for schedule in SCHEDULES]):
        assert torch.equal(run(each, [ids, table])[0], table[ids])
        for place in (0, 13, 31, 44):
            bad = ids.clone()
            bad[place] = 10
            with pytest.raises(IndexError):
                run(each, [bad, table])


def test_an_index_that_is_a_sum_over_the_row_is_one_for_all_lanes(build):
    """out[i] = table[sum of row i], as where the last token before the padding is looked up."""
    (i,), (r,) = axes("i", 5), axes("r", 16)
    row = index.bounded(reduce("sum", (r,), load(Buffer("in0", I64, 80), flat(i, r))), 20)
    of = kernel("last", (i,), (r,), Store(Buffer("out0", F32, 5), var(i), load(Buffer("in1", F32, 20), row)))
    ids, table = torch.randint(0, 2, (5, 16)), torch.randn(20)
    for each in build([(of, schedule) for schedule in SCHEDULES]):
        (out,) = run(each, [ids.flatten(), table])
        assert torch.equal(out, table[ids.sum(1)])
        with pytest.raises(IndexError, match="last"):
            run(each, [ids.flatten() + 2, table])


def test_an_index_is_not_checked_where_it_is_not_observed(build):
    (i,) = axes("i", 45)
    ids = load(Buffer("in0", I64, 45), var(i))
    valid = op("ge", ids, const(0, I64))
    at = index.bounded(
        op("sub", ids, const(5, I64)), 10
    )  # in a lane that is not live: 0 - 5 is in range, 0 + 45 is not
    beyond = index.bounded(op("add", ids, const(45, I64)), 50)
    x = select(valid, load(Buffer("in1", F32, 10), at), number(-1))
    y = load(Buffer("in2", F32, 50), beyond, valid, -2)
    made = kernel("guarded", (i,), (), Store(Buffer("out0", F32, 45), var(i), op("add", x, y)))
    values = {"in0": torch.arange(45) % 5, "in1": torch.randn(10), "in2": torch.randn(50)}
    values["in0"][::4] = -100
    ids = values["in0"]
    wanted = torch.where(ids >= 0, values["in1"][(ids - 5) % 10], torch.tensor(-1.0)) + torch.where(
        ids >= 0, values["in2"][(ids + 45) % 50], torch.tensor(-2.0)
    )
    for each in build([(made, schedule) for schedule in SCHEDULES]):
        assert torch.equal(run(each, [values[buffer.name] for buffer in made.inputs])[0], wanted)
        bad = {**values, "in0": ids.clone()}
        bad["in0"][17] = 40
        with pytest.raises(IndexError):
            run(each, [bad[buffer.name] for buffer in made.inputs])


@pytest.mark.parametrize(
    "dtype", [F32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT16, DType.INT32, DType.UINT8], ids=str
)
def test_addition_to_memory_takes_every_contribution(build, dtype):
    # index_add: out[ids[t], c] += x[t, c], many rows to few places, on several threads at once.
    t, c = axes("i", 300, 40)
    row = index.bounded(load(Buffer("in0", I64, 300), var(t)), 5)
    x = load(Buffer("in1", dtype, 12_000), flat(t, c))
    at = index.add(index.mul(row, 40), var(c))
    made = kernel("index_add", (t, c), (), Store(Buffer("out0", dtype, 200), at, x, mode="add"))
    ids = torch.arange(300) % 5
    values = torch.randint(0, 3, (12_000,)).to(dtype.torch)
    before = torch.ones(200, dtype=dtype.torch)
    wanted = before.view(5, 40).clone().index_add_(0, ids, values.view(300, 40))
    for each in build([(made, schedule) for schedule in SCHEDULES[1:4]]):
        (found,) = run(each, [ids, values], [before.clone()])
        assert torch.equal(found.view(5, 40), wanted)


def test_outputs_may_share_memory_with_inputs_at_the_same_index(build):
    kernels = [softmax(9, 53), layer_norm(9, 53, residual=True), broadcast()]
    chosen = [SCHEDULES[n] for n in (1, 2, 3)]
    for each in build([(made, schedule) for made in kernels for schedule in chosen]):
        inputs = random_inputs(each.kernel)
        names = [buffer.name for buffer in each.kernel.inputs]
        wanted = run(each, inputs)
        for shared in ("in0", "in3"):
            if shared in names and each.kernel.inputs[names.index(shared)].size == each.kernel.outputs[0].size:
                mine = [tensor.clone() for tensor in inputs]
                outputs = [mine[names.index(shared)], *empty_outputs(each.kernel)[1:]]
                assert all(torch.equal(a, b) for a, b in zip(run(each, mine, outputs), wanted, strict=True))


def test_positions_beyond_two_to_the_31_are_reached(build):
    # 2^31 + 64 bytes: the last 64 elements of a buffer, whose index does not fit 32 bits.
    size = (1 << 31) + 64
    a, b = axes("i", 3, 32)
    at = index.add(index.mul(var(a), 1 << 30), index.mul(var(b), 2))
    made = kernel("far", (a, b), (), Store(Buffer("out0", DType.UINT8, size), at, const(9, DType.UINT8)))
    (each,) = build([(made, SCHEDULES[3])])
    memory = torch.zeros(size, dtype=torch.uint8)
    each.bind([memory])()
    assert memory[-64:].tolist() == [9, 0] * 32
    assert memory[1 << 30 : (1 << 30) + 4].tolist() == [9, 0, 9, 0]


def test_bind_refuses_what_does_not_fit(build):
    (each,) = build([(softmax(9, 53), SCHEDULES[3])])
    x = torch.randn(9, 53)
    with pytest.raises(IRError, match="has 2 buffers, not 1"):
        each.bind([x])
    with pytest.raises(IRError, match="out0 is float32"):
        each.bind([x, x[1:]])


def test_rebind_changes_one_address(build):
    (each,) = build([(softmax(9, 53), SCHEDULES[3])])
    x, y, first, second = torch.randn(9, 53), torch.randn(9, 53), torch.zeros(9, 53), torch.zeros(9, 53)
    bound = each.bind([x, first])
    bound()
    kept = first.clone()
    bound.rebind(1, second)
    bound.rebind(0, y)
    bound()
    assert torch.equal(first, kept)
    torch.testing.assert_close(second, y.softmax(1))


def test_halves_are_computed_in_float32_and_rounded_once(build):
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        for each in build([(softmax(5, 77, dtype), schedule) for schedule in SCHEDULES]):
            x = torch.randn(5, 77).to(dtype.torch)
            wanted = x.double().softmax(1)
            error = (run(each, [x.view(-1)])[0].view(5, 77).double() - wanted).abs() / wanted
            assert error.max() <= torch.finfo(dtype.torch).eps / 2 * 1.001


def test_masked_load_cast(build):
    (i,) = axes("i", 21)
    x = load(Buffer("in0", DType.FLOAT16, 21), var(i), op("lt", var(i), const(13, I64)), 0.1)
    made = kernel("half_mask", (i,), (), Store(Buffer("out0", F32, 21), var(i), cast(x, F32)))
    half = torch.randn(21).half()
    wanted = torch.where(torch.arange(21) < 13, half, torch.tensor(0.1).half()).float()
    for each in build([(made, schedule) for schedule in SCHEDULES]):
        assert torch.equal(run(each, [half])[0], wanted)
