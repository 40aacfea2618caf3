"""Cases for the shapes of kernels: layouts, masks, gathers, rows with several reductions; values from torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.ir.dtype import DType, from_torch
from stages.ir.expr import Axis, Buffer, Const, Expr, cast, const, load, op, reduce, select, var
from stages.ir.index import add, bounded, linearize, mod, mul, number, variables
from stages.ir.kernel import Kernel, Store, normalize
from tests.codegen_triton.checking import Case

F32 = DType.FLOAT32
EPSILON = 1e-5


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed)).to(dtype)


def source(name: str, tensor: Tensor) -> Buffer:
    dtype = from_torch(tensor.dtype)
    assert dtype is not None
    return Buffer(name, dtype, tensor.numel())


def axes(prefix: str, *extents: int) -> tuple[Axis, ...]:
    return tuple(Axis(f"{prefix}{n}", extent) for n, extent in enumerate(extents))


def at(buffer: Buffer, loops: tuple[Axis, ...], strides: tuple[int, ...], offset: int = 0) -> Expr:
    """The element of `buffer` at a position of `loops`, in the type it is computed in."""
    value = load(buffer, linearize(variables(loops), strides, offset))
    return cast(value, buffer.dtype.compute)


def one(value: float) -> Const:
    return const(value, F32)


# ---- pointwise ------------------------------------------------------------------------------


def broadcast() -> Case:
    a, b, c = normal(5, 7), normal(7, seed=1), normal(5, seed=2)
    i, j = axes("i", 5, 7)
    value = op(
        "add",
        op("mul", at(source("in0", a), (i, j), (7, 1)), at(source("in1", b), (j,), (1,))),
        at(source("in2", c), (i,), (1,)),
    )
    kernel = Kernel(
        "broadcast", (i, j), (), (Store(Buffer("out0", F32, 35), linearize(variables((i, j)), (7, 1)), value),)
    )
    return Case(kernel, (a.flatten(), b, c), ((a * b + c[:, None]).flatten(),))


def transposed() -> Case:
    a = normal(3, 21, 10)
    n, i, j = axes("i", 3, 10, 21)
    value = op("neg", at(source("in0", a), (n, i, j), (210, 1, 10)))
    kernel = Kernel(
        "transposed",
        (n, i, j),
        (),
        (Store(Buffer("out0", F32, 630), linearize(variables((n, i, j)), (210, 21, 1)), value),),
    )
    return Case(kernel, (a.flatten(),), ((-a).transpose(1, 2).flatten(),))


def swapped_ends() -> Case:
    """The two axes of the block are not neighbours."""
    a = normal(9, 3, 20, dtype=torch.bfloat16)
    i, j, k = axes("i", 20, 3, 9)
    value = load(source("in0", a), linearize(variables((i, j, k)), (1, 20, 60)))
    out = Buffer("out0", DType.BFLOAT16, 540)
    kernel = Kernel("swapped", (i, j, k), (), (Store(out, linearize(variables((i, j, k)), (27, 9, 1)), value),))
    return Case(kernel, (a.flatten(),), (a.permute(2, 1, 0).flatten(),))


def padded() -> Case:
    """A masked load whose index is out of range wherever the mask is false, and another value there."""
    a = normal(6, dtype=torch.float16)
    (i,) = axes("i", 11)
    index = add(var(i), -3)
    mask = op("and", op("ge", index, number(0)), op("lt", index, number(6)))
    value = load(source("in0", a), index, mask, 2.5)
    kernel = Kernel("padded", (i,), (), (Store(Buffer("out0", DType.FLOAT16, 11), var(i), value),))
    return Case(kernel, (a,), (F.pad(a, (3, 2), value=2.5),))


def row_mask() -> Case:
    """A load that varies along fewer axes than its mask."""
    a = normal(4)
    i, j = axes("i", 4, 9)
    value = load(source("in0", a), var(i), op("lt", var(j), number(5)), -1.0)
    kernel = Kernel(
        "row_mask", (i, j), (), (Store(Buffer("out0", F32, 36), linearize(variables((i, j)), (9, 1)), value),)
    )
    expected = torch.where(torch.arange(9) < 5, a[:, None], torch.tensor(-1.0))
    return Case(kernel, (a,), (expected.flatten(),))


def flipped_and_rolled() -> Case:
    a = normal(17)
    (i,) = axes("i", 17)
    buffer = source("in0", a)
    value = op("sub", load(buffer, add(mul(var(i), -1), 16)), load(buffer, mod(add(var(i), -4), 17)))
    kernel = Kernel("flip", (i,), (), (Store(Buffer("out0", F32, 17), var(i), value),))
    return Case(kernel, (a,), (a.flip(0) - a.roll(4),))


def counted() -> Case:
    """Loop indices and literals as values, of several types; a store of a bool."""
    i, j = axes("i", 3, 5)
    flat = linearize(variables((i, j)), (5, 1))
    stores = (
        Store(Buffer("out0", DType.INT64, 15), flat, op("mul", flat, flat)),
        Store(Buffer("out1", F32, 15), flat, cast(add(mul(var(j), 2), 1), F32)),
        Store(Buffer("out2", DType.BOOL, 15), flat, op("le", var(j), var(i))),
        Store(Buffer("out3", DType.BFLOAT16, 15), flat, const(0.1, DType.BFLOAT16)),
        Store(Buffer("out4", DType.FLOAT64, 15), flat, const(0.1, DType.FLOAT64)),
        Store(Buffer("out5", DType.INT64, 15), flat, const(1 << 40, DType.INT64)),
    )
    kernel = Kernel("counted", (i, j), (), stores)
    column = torch.arange(5).repeat(3)
    expected = (
        torch.arange(15) ** 2,
        (column * 2 + 1).float(),
        torch.ones(3, 5).tril().bool().flatten(),
        torch.full((15,), 0.1, dtype=torch.bfloat16),
        torch.full((15,), 0.1, dtype=torch.float64),
        torch.full((15,), 1 << 40),
    )
    return Case(kernel, (), expected)


def gelu() -> Case:
    x = normal(700, dtype=torch.float16)
    (i,) = axes("i", 700)
    value = at(source("in0", x), (i,), (1,))
    inner = op("erf", op("mul", value, one(0.5**0.5)))
    result = op("mul", op("mul", value, one(0.5)), op("add", inner, one(1.0)))
    kernel = Kernel("gelu", (i,), (), (Store(Buffer("out0", DType.FLOAT16, 700), var(i), cast(result, DType.FLOAT16)),))
    return Case(kernel, (x,), (F.gelu(x.double()).half(),), ulps=1, floor=0.01)


def selected() -> Case:
    """The side not taken is NaN or infinite, and is not seen."""
    x = torch.tensor([-1.0, 0.0, 4.0, 9.0, float("inf"), float("nan")])
    (i,) = axes("i", 6)
    value = load(source("in0", x), var(i))
    result = select(op("gt", value, one(0.0)), op("sqrt", value), op("div", one(1.0), value))
    kernel = Kernel("select", (i,), (), (Store(Buffer("out0", F32, 6), var(i), result),))
    return Case(kernel, (x,), (torch.where(x > 0, x.sqrt(), 1 / x),))


def joined() -> Case:
    """Two loads of a small cat, and in the same kernel a store at an offset."""
    a, b = normal(4), normal(5, seed=1)
    (i,) = axes("i", 9)
    first = op("lt", var(i), number(4))
    left = load(source("in0", a), var(i), first)
    right = load(source("in1", b), add(var(i), -4), op("not", first))
    value = select(first, left, right)
    stores = (Store(Buffer("out0", F32, 9), var(i), value), Store(Buffer("out1", F32, 20), add(var(i), 11), value))
    joint = torch.cat([a, b])
    before = torch.zeros(20)
    after = torch.cat([before[:11], joint])
    return Case(Kernel("cat", (i,), (), stores), (a, b), (joint, after), initial=(torch.zeros(9), before))


def scattered(dtype: DType) -> Case:
    """Additions to elements that meet, exact in any order."""
    chosen = torch.tensor([0, 3, 3, -1, 3, 0, 2])
    values = torch.arange(1, 8).to(dtype.torch)
    (i,) = axes("i", 7)
    index = bounded(load(source("in1", chosen), var(i)), 5)
    value = load(source("in0", values), var(i))
    kernel = Kernel("scatter", (i,), (), (Store(Buffer("out0", dtype, 5), index, value, mode="add"),))
    before = torch.full((5,), 10).to(dtype.torch)
    after = before.clone().index_add(0, chosen % 5, values)
    order = {"in0": values, "in1": chosen}
    return Case(kernel, tuple(order[b.name] for b in kernel.inputs), (after,), initial=(before,))


def guarded_gather() -> Case:
    """An index out of range where the mask is false is no error."""
    table, chosen = normal(4), torch.tensor([1, 99, -4, -77, 3])
    (i,) = axes("i", 5)
    index = load(source("in0", chosen), var(i))
    inside = op("and", op("ge", index, number(-4)), op("lt", index, number(4)))
    value = load(source("in1", table), bounded(index, 4), inside, 8.0)
    kernel = Kernel("guarded", (i,), (), (Store(Buffer("out0", F32, 5), var(i), value),))
    expected = torch.stack([table[1], torch.tensor(8.0), table[0], torch.tensor(8.0), table[3]])
    tensors = {"in0": chosen, "in1": table}
    return Case(kernel, tuple(tensors[b.name] for b in kernel.inputs), (expected,))


def wild_gather() -> Case:
    """An index out of range: the launch reports it and reads row 0."""
    table, chosen = normal(4), torch.tensor([1, 4, 2])
    (i,) = axes("i", 3)
    value = load(source("in1", table), bounded(load(source("in0", chosen), var(i)), 4))
    kernel = Kernel("wild", (i,), (), (Store(Buffer("out0", F32, 3), var(i), value),))
    return Case(kernel, (chosen, table), (table[torch.tensor([1, 0, 2])],))


def wrapped() -> Case:
    """A bounds-checked index as a number, summed over a row."""
    chosen = torch.tensor([[3, -1, 0], [-4, 2, 1]])
    i, r = Axis("i0", 2), Axis("r0", 3)
    index = bounded(load(source("in0", chosen), linearize(variables((i, r)), (3, 1))), 4)
    kernel = Kernel("wrapped", (i,), (r,), (Store(Buffer("out0", DType.INT64, 2), var(i), reduce("sum", (r,), index)),))
    return Case(kernel, (chosen.flatten(),), ((chosen % 4).sum(1),))


def single() -> Case:
    """No axes at all."""
    x = torch.tensor([3.0])
    value = op("mul", load(source("in0", x), number(0)), one(2.0))
    return Case(Kernel("single", (), (), (Store(Buffer("out0", F32, 1), number(0), value),)), (x,), (x * 2,))


def negative_zero() -> Case:
    """-0.0 as a constant, told by the infinity that it divides to."""
    x = torch.tensor([0.0, -0.0, 1.0])
    (i,) = axes("i", 3)
    zero = const(-0.0, F32)
    stores = (
        Store(Buffer("out0", F32, 3), var(i), op("div", one(1.0), op("sub", zero, load(source("in0", x), var(i))))),
        Store(Buffer("out1", F32, 3), var(i), op("div", one(1.0), zero)),
    )
    return Case(Kernel("negative_zero", (i,), (), stores), (x,), (1 / (-0.0 - x), torch.full((3,), -torch.inf)))


def compared_scalar() -> Case:
    """What is true of one number, beside what is true of each of many."""
    x, flag = torch.tensor([0.0, 2.0, -3.0]), torch.tensor([0.5], dtype=torch.float16)
    (i,) = axes("i", 3)
    present = op("ne", cast(load(source("in0", flag), number(0)), F32), const(0.0, F32))
    value = op("and", present, op("lt", load(source("in1", x), var(i)), one(1.0)))
    kernel = Kernel("compared_scalar", (i,), (), (Store(Buffer("out0", DType.BOOL, 3), var(i), value),))
    return Case(kernel, (flag, x), (torch.tensor([True, False, True]),))


# ---- rows -----------------------------------------------------------------------------------


def mean(value: Expr, inner: tuple[Axis, ...]) -> Expr:
    count = 1
    for axis in inner:
        count *= axis.extent
    return op("div", reduce("sum", inner, value), one(float(count)))


def softmax() -> Case:
    """Rows with an infinity, a NaN and huge values; half types in and out."""
    x = normal(6, 13, dtype=torch.bfloat16) * 9
    x[1, 2], x[2, 5], x[3, :] = float("-inf"), float("nan"), 30000.0
    i, r = Axis("i0", 6), Axis("r0", 13)
    value = at(source("in0", x), (i, r), (13, 1))
    shifted = op("exp", op("sub", value, reduce("max", (r,), value)))
    result = cast(op("div", shifted, reduce("sum", (r,), shifted)), DType.BFLOAT16)
    out = Buffer("out0", DType.BFLOAT16, 78)
    kernel = Kernel("softmax", (i,), (r,), (Store(out, linearize(variables((i, r)), (13, 1)), result, inner=True),))
    return Case(kernel, (x.flatten(),), (x.double().softmax(1).bfloat16().flatten(),), ulps=1)


def masked_softmax() -> Case:
    """Scores that a causal mask hides count as -inf."""
    x = normal(7, 7)
    i, r = Axis("i0", 7), Axis("r0", 7)
    seen = op("le", var(r), var(i))
    value = load(source("in0", x), linearize(variables((i, r)), (7, 1)), seen, float("-inf"))
    shifted = op("exp", op("sub", value, reduce("max", (r,), value)))
    result = op("div", shifted, reduce("sum", (r,), shifted))
    kernel = Kernel(
        "causal",
        (i,),
        (r,),
        (Store(Buffer("out0", F32, 49), linearize(variables((i, r)), (7, 1)), result, inner=True),),
    )
    hidden = torch.ones(7, 7).triu(1).bool()
    expected = x.double().masked_fill(hidden, float("-inf")).softmax(1).float()
    return Case(kernel, (x.flatten(),), (expected.flatten(),), ulps=16)


def layer_norm(rows: int = 5, size: int = 21) -> Case:
    """Residual added first; the sum, the mean and the normalised row are stored."""
    x, residual = normal(rows, size), normal(rows, size, seed=1)
    weight, bias = normal(size, seed=2), normal(size, seed=3)
    i, r = Axis("i0", rows), Axis("r0", size)
    place = linearize(variables((i, r)), (size, 1))
    total = op("add", load(source("in0", x), place), load(source("in1", residual), place))
    average = mean(total, (r,))
    centred = op("sub", total, average)
    scale = op("rsqrt", op("add", mean(op("mul", centred, centred), (r,)), one(EPSILON)))
    scaled = op("mul", op("mul", centred, scale), at(source("in2", weight), (r,), (1,)))
    stores = (
        Store(Buffer("out0", F32, rows * size), place, total, inner=True),
        Store(Buffer("out1", F32, rows), var(i), average),
        Store(
            Buffer("out2", F32, rows * size), place, op("add", scaled, at(source("in3", bias), (r,), (1,))), inner=True
        ),
    )
    kernel = Kernel("layer_norm", (i,), (r,), stores)
    exact = x.double() + residual.double()
    normed = F.layer_norm(exact, (size,), weight.double(), bias.double(), EPSILON)
    expected = (x + residual, exact.mean(1).float(), normed.float())
    given = {"in0": x, "in1": residual, "in2": weight, "in3": bias}
    inputs = tuple(given[buffer.name].flatten() for buffer in kernel.inputs)
    return Case(kernel, inputs, tuple(tensor.flatten() for tensor in expected), ulps=16, floor=1.0)


def group_norm() -> Case:
    """Two inner axes, and weights that vary along one of them."""
    batch, groups, channels, pixels = 2, 2, 3, 7
    x = normal(batch, groups * channels, pixels, dtype=torch.float64)
    weight = normal(groups * channels, dtype=torch.float64, seed=1)
    n, g, c, p = Axis("i0", batch), Axis("i1", groups), Axis("r0", channels), Axis("r1", pixels)
    size = channels * pixels
    place = linearize(variables((n, g, c, p)), (groups * size, size, pixels, 1))
    count = const(float(size), DType.FLOAT64)
    value = load(source("in0", x), place)
    average = op("div", reduce("sum", (c, p), value), count)
    centred = op("sub", value, average)
    variance = op("div", reduce("sum", (c, p), op("mul", centred, centred)), count)
    scale = op("div", const(1.0, DType.FLOAT64), op("sqrt", op("add", variance, const(EPSILON, DType.FLOAT64))))
    factor = load(source("in1", weight), linearize(variables((g, c)), (channels, 1)))
    result = op("mul", op("mul", centred, scale), factor)
    out = Buffer("out0", DType.FLOAT64, x.numel())
    kernel = Kernel("group_norm", (n, g), (c, p), (Store(out, place, result, inner=True),))
    expected = F.group_norm(x, groups, weight, None, EPSILON)
    return Case(kernel, (x.flatten(), weight), (expected.flatten(),), ulps=16, floor=1.0)


def columns() -> Case:
    """A reduction over the slow axis."""
    x = normal(19, 6)
    i, r = Axis("i0", 6), Axis("r0", 19)
    value = load(source("in0", x), linearize(variables((r, i)), (6, 1)))
    stores = (
        Store(Buffer("out0", F32, 6), var(i), reduce("max", (r,), value)),
        Store(Buffer("out1", DType.INT64, 6), var(i), reduce("argmin", (r,), value)),
    )
    return Case(Kernel("columns", (i,), (r,), stores), (x.flatten(),), (x.amax(0), x.argmin(0)))


def whole() -> Case:
    """Everything to one number, and a row that a reduction does not look at."""
    x = torch.arange(100, dtype=torch.int32)
    (r,) = axes("r", 100)
    value = load(source("in0", x), var(r))
    stores = (
        Store(Buffer("out0", DType.INT32, 1), number(0), reduce("sum", (r,), value)),
        Store(Buffer("out1", DType.INT32, 1), number(0), reduce("sum", (r,), const(3, DType.INT32))),
    )
    one_row = torch.tensor([4950], dtype=torch.int32), torch.tensor([300], dtype=torch.int32)
    return Case(Kernel("whole", (), (r,), stores), (x,), one_row)


def gathered_rows() -> Case:
    """Embedding and norm in one kernel: the table's row is chosen once a row."""
    table, chosen = normal(9, 12), torch.tensor([4, -2, 0, 8, 4])
    i, r = Axis("i0", 5), Axis("r0", 12)
    index = bounded(load(source("in0", chosen), var(i)), 9)
    value = load(source("in1", table), add(mul(index, 12), var(r)))
    result = op("sub", value, reduce("max", (r,), value))
    kernel = Kernel(
        "gathered",
        (i,),
        (r,),
        (Store(Buffer("out0", F32, 60), linearize(variables((i, r)), (12, 1)), result, inner=True),),
    )
    rows = table[chosen]
    given = {"in0": chosen, "in1": table.flatten()}
    expected = rows - rows.amax(1, keepdim=True)
    return Case(kernel, tuple(given[b.name] for b in kernel.inputs), (expected.flatten(),))


def divided_rows() -> Case:
    """Whole-number division by what a masked position has not loaded."""
    x = torch.arange(1, 25)
    i, r = Axis("i0", 3), Axis("r0", 8)
    value = load(source("in0", x), linearize(variables((i, r)), (8, 1)))
    body = op("floordiv", const(1000, DType.INT64), value)
    kernel = Kernel("divided", (i,), (r,), (Store(Buffer("out0", DType.INT64, 3), var(i), reduce("sum", (r,), body)),))
    return Case(kernel, (x,), ((1000 // x).view(3, 8).sum(1),))


def normalized(build: Callable[[], Case]) -> Callable[[], Case]:
    def again() -> Case:
        case = build()
        return replace(case, kernel=normalize(case.kernel))

    return again


_PLAIN: tuple[Callable[[], Case], ...] = (
    *(broadcast, transposed, swapped_ends, padded, row_mask, flipped_and_rolled, counted, gelu, selected, joined),
    *(guarded_gather, single, softmax, masked_softmax, layer_norm, group_norm, columns, whole),
    *(gathered_rows, divided_rows, wrapped, negative_zero, compared_scalar),
)
CASES: dict[str, Callable[[], Case]] = {
    **{build.__name__: build for build in _PLAIN},
    **{f"normal-{build.__name__}": normalized(build) for build in _PLAIN},
    **{f"scatter-{dtype}": (lambda d=dtype: scattered(d)) for dtype in (F32, DType.FLOAT64, DType.INT32, DType.INT64)},
}
