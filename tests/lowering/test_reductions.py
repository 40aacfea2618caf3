"""Reductions and normalisations against eager: dimensions, types, NaN, ties, layouts, chains in one kernel."""

import operator

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from stages.fusion.lowering import Kind, NotFusable, kind_of
from tests.lowering.harness import Run, calls, check, check_all, one_by_one, together, trace
from tests.lowering.samples import FLOATS, randn

X = randn(2, 8, 4, 6)
LAYOUTS = {
    "contiguous": X,
    "channels_last": X.contiguous(memory_format=torch.channels_last),
    "transposed": randn(6, 4, 8, 2).permute(3, 2, 1, 0),
    "sliced": randn(2, 16, 4, 7)[:, ::2, :, 1:],
    "expanded": randn(2, 1, 4, 6).expand(2, 8, 4, 6),
}

FUNCTIONS = {
    "sum": lambda x: x.sum(),
    "sum_last": lambda x: x.sum(-1),
    "sum_keep": lambda x: x.sum((1, 3), keepdim=True),
    "sum_dims": lambda x: x.sum((0, 2)),
    "sum_double": lambda x: x.sum(1, dtype=torch.float64),
    "mean": lambda x: x.mean(),
    "mean_dims": lambda x: x.mean((2, 3)),
    "mean_keep": lambda x: x.mean(1, keepdim=True),
    "prod": lambda x: x.prod(2),
    "prod_all": lambda x: (x * 0.1 + 1).prod(),
    "amax": lambda x: x.amax((1, 2)),
    "amin": lambda x: x.amin((0, 3), keepdim=True),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max_dim": lambda x: x.max(1),
    "min_dim": lambda x: x.min(2, keepdim=True),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "argmax": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(1),
    "argmax_keep": lambda x: x.argmax(-1, keepdim=True),
    "any": lambda x: (x > 2).any(),
    "any_dim": lambda x: (x > 1).any(1),
    "all": lambda x: (x > -1).all(2, keepdim=True),
    "var": lambda x: x.var(),
    "var_dims": lambda x: x.var((1, 2), correction=0),
    "var_fraction": lambda x: x.var(1, correction=0.5),
    "std": lambda x: x.std(1, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, (2, 3)),
    "std_mean": lambda x: torch.std_mean(x, 1),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, (1, 2)),
    "norm_1": lambda x: torch.linalg.vector_norm(x, 1, 1),
    "norm_3": lambda x: torch.linalg.vector_norm(x, 3, 1),
    "norm_0": lambda x: torch.linalg.vector_norm(x, 0, 1),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
    "norm_minus_inf": lambda x: torch.linalg.vector_norm(x, -float("inf"), 1),
    "logsumexp": lambda x: x.logsumexp((1, 3)),
    "count_nonzero": lambda x: torch.count_nonzero(x > 0, 1),
    "softmax": lambda x: x.softmax(-1),
    "softmax_channels": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(2),
    "safe_softmax": lambda x: torch._safe_softmax(x, -1),
    "softmax_float": lambda x: torch.softmax(x, 1, dtype=torch.float32),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "layer_norm_dims": lambda x: F.layer_norm(x, (4, 6), eps=1e-3),
    "rms_norm": lambda x: F.rms_norm(x, (4, 6)),
    "group_norm": lambda x: F.group_norm(x, 4),
    "instance_norm": lambda x: F.instance_norm(x),
    "batch_norm": lambda x: F.batch_norm(x, x.new_ones(8) * 0.1, x.new_ones(8) * 2, eps=1e-3),
    "normalize": lambda x: F.normalize(x, dim=1),
}

# FakeTensors promise row-major results here, where eager's kernels give channels-last ones.
FAKE_STRIDES_DIFFER = {("group_norm", "channels_last"), ("batch_norm", "transposed")}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_layouts(name, layout):
    """Alone in its kernel and as part of a group, on every layout."""
    x, function = LAYOUTS[layout], FUNCTIONS[name]
    same = (name, layout) not in FAKE_STRIDES_DIFFER
    check(together(function, [x])[0], function, [x], layout=same, cancels=True)


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_float_types(dtype):
    check_all(FUNCTIONS, [X.to(dtype)], cancels=FUNCTIONS)


WHOLE = ["sum", "sum_dims", "prod", "amax", "max", "max_dim", "min_dim", "argmax", "argmin", "count_nonzero", "aminmax"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
def test_whole_numbers(dtype):
    check_all({name: FUNCTIONS[name] for name in WHOLE}, [randn(2, 8, 4, 6, dtype=dtype)])


def test_bools_sum_in_int64_and_bytes_are_true_as_bytes():
    def of_bools(x):
        return x.sum(), x.sum(1), x.any(1), x.all(0), x.amax(1), x.amin(0), x.max(1), x.min(0), x.prod(1)

    def of_bytes(x):
        return x.any(1), x.all(), x.sum(0)

    x = randn(4, 6, dtype=torch.bool)
    check(one_by_one(of_bools, [x]), of_bools, [x])
    x = randn(4, 6, dtype=torch.uint8)
    check(one_by_one(of_bytes, [x]), of_bytes, [x])


def test_sums_and_products_in_bool_are_any_and_all():
    def function(x):
        return (
            x.sum(1, dtype=torch.bool),
            x.sum(dtype=torch.bool),
            x.prod(1, dtype=torch.bool),
            x.prod(dtype=torch.bool),
        )

    for values in (
        [[0.5, 0.25], [float("nan"), 0.0], [0.0, 0.0]],
        [[256, 1], [2, 0], [0, 0]],
        [[True, True], [False, True]],
    ):
        x = torch.tensor(values)
        check(one_by_one(function, [x]), function, [x])


def test_nan_and_infinities():
    nan, inf = float("nan"), float("inf")
    x = torch.tensor(
        [[1.0, nan, 3.0], [nan, nan, -1.0], [inf, 2.0, -inf], [-inf, -inf, -inf], [inf, inf, 0.0], [4, 4, 4]]
    )

    def function(x):
        return (
            x.amax(1),
            x.amin(1),
            *x.max(1),
            *x.min(1),
            x.argmax(1),
            x.argmin(1),
            x.argmax(),
            x.sum(1),
            x.mean(1),
            x.var(1),
            x.softmax(1),
            x.log_softmax(1),
            torch._safe_softmax(x, 1),
            x.logsumexp(1),
            (x > 0).any(1),
            x.bool().all(1),
            F.layer_norm(x, (3,)),
            x.prod(1),
            torch.linalg.vector_norm(x, dim=1),
        )

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        values = x.to(dtype)
        check(one_by_one(function, [values]), function, [values])


def test_softmax_of_a_masked_row():
    x = torch.full((2, 4), -float("inf"))
    x[0, 1] = 3
    assert one_by_one(lambda x: torch._safe_softmax(x, -1), [x])[0].tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]
    assert one_by_one(lambda x: x.softmax(-1), [x])[0].isnan().tolist() == [[False] * 4, [True] * 4]


def test_ties_take_the_first_position():
    x = torch.tensor([[3.0, 7, 7, 1], [5, 5, 5, 5], [0.0, -0.0, 0, -0.0]])
    ours = one_by_one(lambda x: (x.argmax(1), x.argmin(1), x.max(1)[1], x.T.contiguous().argmax()), [x])
    assert [part.tolist() for part in ours] == [[1, 0, 0], [3, 0, 0], [1, 0, 0], 3]


def test_a_variance_over_too_few_elements():
    x = randn(3, 1)

    def function(x):
        return x.var(1), x.var(1, correction=0), x.std(1, correction=2)

    check(one_by_one(function, [x]), function, [x], cancels=True)


def test_normalisations_with_weights_of_their_own_type():
    x, w, b = randn(2, 8, 4, 6), randn(8, seed=1), randn(8, seed=2)
    functions = [
        lambda x, w, b: F.group_norm(x, 2, w, b),
        lambda x, w, b: F.batch_norm(x, b, w.abs(), w, b),
        lambda x, w, b: F.layer_norm(x.transpose(1, 3), (8,), w, b),
        lambda x, w, b: F.rms_norm(x.transpose(1, 3), (8,), w),
        lambda x, w, b: torch.native_layer_norm(x.transpose(1, 3), [8], w, b, 1e-5),
        lambda x, w, b: torch.native_group_norm(x, w, b, 2, 8, 24, 4, 1e-5),
    ]
    for function in functions:
        for dtype in FLOATS:
            inputs = [tensor.to(dtype) for tensor in (x, w, b)]
            check(one_by_one(function, inputs), function, inputs, cancels=True)
        # Saved statistics are left out: FakeTensors promise bfloat16 where eager keeps them in float32.
        inputs = [x.bfloat16(), w, b]
        check(
            one_by_one(function, inputs)[:1], lambda *args, f=function: tree_leaves(f(*args))[0], inputs, cancels=True
        )


def test_normalised_zeros_have_eagers_sign():
    """0 times a negative weight is -0, to which eager adds a bias of 0."""
    x, w = torch.zeros(3, 2, 1), -torch.ones(2)
    flat, mean, variance = torch.zeros(3, 2), torch.zeros(2), torch.ones(2)
    functions = [
        (lambda x, w: torch.native_layer_norm(x, [1], w[:1], None, 1e-5)[0], (x, w)),
        (lambda x, w: torch.native_group_norm(x, w, None, 3, 2, 1, 2, 1e-5)[0], (x, w)),
        (lambda x, w, mean, variance: F.batch_norm(x, mean, variance, w, None), (flat, w, mean, variance)),
    ]
    for function, inputs in functions:
        (ours,) = one_by_one(function, inputs)
        eager = function(*inputs)
        assert torch.equal(ours, eager) and torch.equal(torch.signbit(ours), torch.signbit(eager))


def test_chains_are_one_kernel():
    x, y, w = randn(4, 6, 16), randn(4, 6, 16, seed=1), randn(16, seed=2)

    def residual_norm(x, y, w):
        total = x + y
        return total, F.layer_norm(total, (16,), w, w)

    def attention_scores(x, y, w):
        return ((x * 0.3 + y).masked_fill(w > 0.5, -float("inf")).softmax(-1) * 2).to(torch.bfloat16)

    def row_statistics(x, y, w):
        return (
            (x - x.mean(-1, keepdim=True)).square().sum(-1),
            x.amax(-1),
            x.argmax(-1),
            x / x.norm(dim=-1, keepdim=True),
        )

    def reshaped(x, y, w):
        return F.layer_norm(x, (16,)).view(4, 6, 2, 8).transpose(1, 2).contiguous()

    def heads(x, y, w):
        return (x.view(4, 6, 2, 8) + y.view(4, 6, 2, 8)).softmax(-1).transpose(1, 2).contiguous().view(8, 6, 8)

    def norm_of_transposed(x, y, w):
        return F.layer_norm(x.transpose(1, 2).contiguous().relu(), (6,))

    functions = [residual_norm, attention_scores, row_statistics, norm_of_transposed, heads]
    for function in functions:
        for dtype in (torch.float32, torch.bfloat16):
            inputs = [tensor.to(dtype) for tensor in (x, y, w)]
            ours, kernel = together(function, inputs)
            check(ours, function, inputs)
            assert kernel.row_size in (16, 8, 6)
    with pytest.raises(NotFusable, match="one value a row"):
        together(reshaped, [x, y, w])


def test_group_norm_of_a_reshaped_tensor_is_one_kernel():
    x, w = randn(2, 8, 4, 6), randn(8, seed=1)

    def function(x, w):
        groups = (x + 1).view(2, 2, 96)
        scaled = (groups - groups.mean(2, keepdim=True)) * groups.var(2, keepdim=True).rsqrt()
        return F.silu(scaled.view(2, 8, 4, 6) * w[:, None, None])

    ours, kernel = together(function, [x, w])
    check(ours, function, [x, w])
    assert kernel.row_size == 96


def both_ways(x):
    return x + x.flip(0)


def test_what_is_no_row_is_refused_with_a_reason():
    x = randn(4, 6)
    cases = [
        (lambda x: x.sum(1).sum(0), "reduces 4 rows of 6 and"),
        (lambda x: (x.sum(1), x.sum(0)), "reduces 4 rows of 6 and"),
        (lambda x: F.pad(x.softmax(1), (0, 0, 1, 1)), "does not fit the rows"),
        (lambda x: x[:, :4] + x[:, :4].softmax(1).T, "other rows along one row"),
        (lambda x: x.softmax(1)[:2] + x.softmax(1)[2:], "does not fit the rows"),
        (lambda x: both_ways(x.softmax(1)), "computed again"),
    ]
    for function, reason in cases:
        with pytest.raises(NotFusable, match=reason):
            together(function, [x])


def test_kinds():
    def function(x):
        return x.softmax(0), torch.var_mean(x, 1), x.view(2, 2) + 1, x.cumsum(0), x.new_ones(2)

    kinds = {str(node.target): kind_of(node) for node in calls(trace(function, [randn(4)[None] * randn(4, 1)[:1]]))}
    assert kinds == {
        "aten._softmax.default": Kind.REDUCTION,
        "aten.var_mean.correction": Kind.REDUCTION,
        "<built-in function getitem>": Kind.REDUCTION,
        "aten.view.default": Kind.VIEW,
        "aten.add.Tensor": Kind.POINTWISE,
        "aten.cumsum.default": Kind.EXTERN,
        "aten.new_ones.default": Kind.CREATION,
    }
    assert kind_of(next(iter(trace(function, [randn(1, 4)]).nodes))) is Kind.EXTERN


def test_the_fused_rms_norm_of_cuda_graphs():
    """The CPU decomposes it before it gets into a graph, so the call is put together by hand."""
    x, w = randn(2, 4, 6), randn(6, seed=1)
    overload = torch.ops.aten._fused_rms_norm.default
    graph = trace(lambda x, w: x.mean(-1, keepdim=True) * w, [x, w])
    source, weight = (node for node in graph.nodes if node.op == "placeholder")
    for eps in (1e-6, None):
        with graph.inserting_before(calls(graph)[0]):
            node = graph.call_function(overload, (source, [6], weight, eps))
            parts = [graph.call_function(operator.getitem, (node, position)) for position in range(2)]
        node.meta["val"] = overload(source.meta["val"], [6], weight.meta["val"], eps)
        for part, fake in zip(parts, node.meta["val"]):
            part.meta["val"] = fake
        run = Run(graph, [x, w])
        run.launch([node, *parts], parts)
        run.results = parts
        check(run.tensors(), lambda x, w, eps=eps: overload(x, [6], w, eps), [x, w], cancels=True)
