"""Each rewrite gives what eager gives, and does what its name says."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pipeline import optimize
from stages import rewrite
from stages.ir.errors import ConfigError
from stages.rewrite.config import RewriteConfig
from stages.rewrite.freeze import run_prologue
from tests.graphs import execute, graph_of, targets

torch.manual_seed(0)


class Function(nn.Module):
    def __init__(self, function, **weights):
        super().__init__()
        self.function = function
        for name, tensor in weights.items():
            self.register_buffer(name, tensor)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def rewritten(module, *inputs, passes=None):
    graph = graph_of(module, *inputs)
    return rewrite.run(graph, RewriteConfig(passes) if passes is not None else RewriteConfig())


def check(graph, module, *inputs, tolerance=1e-5):
    with torch.no_grad():
        expected = module(*inputs)
    expected = (expected,) if isinstance(expected, torch.Tensor) else expected
    for mine, eager in zip(execute(graph, *inputs), expected, strict=True):
        assert mine.dtype is eager.dtype and mine.shape == eager.shape and mine.stride() == eager.stride()
        assert torch.allclose(mine, eager, rtol=tolerance, atol=tolerance, equal_nan=True)


class ConvNet(nn.Module):
    def __init__(self, bias, affine=True):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=bias)
        self.norm = nn.BatchNorm2d(8, affine=affine)
        self.linear = nn.Linear(8, 4)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)))
        return self.linear(y.mean((2, 3))), y, y.flatten(1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_batch_norm_is_folded_and_output_strides_stay_eagers(bias, affine):
    module, x = ConvNet(bias, affine).eval(), torch.randn(2, 3, 10, 10)
    graph = rewritten(module, x)
    assert not [name for name in targets(graph) if "batch_norm" in name or "aten.convolution" in name]
    assert [name for name in targets(graph) if "mkldnn" in name] == [
        "mkldnn._convolution_pointwise.default",
        "mkldnn._linear_pointwise.default",
    ]
    check(graph, module, x)


def test_batch_norm_of_a_value_used_twice_stays():
    norm = nn.BatchNorm1d(4).eval()
    conv = nn.Conv1d(4, 4, 1).eval()
    module = Function(lambda self, x: (self.conv(x), self.norm(self.conv(x)) + self.conv(x)))
    module.conv, module.norm = conv, norm
    graph = rewritten(module, torch.randn(2, 4, 5), passes=["remove_duplicates", "fold_batch_norm"])
    assert any("batch_norm" in name for name in targets(graph))


def test_folding_follows_a_changed_weight_without_compiling_again():
    module = Function(lambda self, x: x + (self.w * 2).exp(), w=torch.randn(5))
    x = torch.randn(3, 5)
    graph = rewritten(module, x)
    assert targets(graph) == ["aten.add.Tensor"]
    module.w.fill_(0.5)
    values = dict(zip(graph.constants_of_prologue, run_prologue(graph.prologue, graph.weights_of_prologue)))
    for entry in graph.inputs:
        if entry.name in values:
            entry.tensor = values[entry.name]
    check(graph, module, x)


def test_folding_twice_keeps_one_prologue():
    module = Function(lambda self, x: x @ (self.w * 2).t() + self.v.exp(), w=torch.randn(4, 4), v=torch.randn(4))
    graph = rewritten(module, torch.randn(3, 4), passes=["fold_constants", "prepack", "fold_constants"])
    assert {entry.source for entry in graph.weights_of_prologue} == {"w", "v"}
    values = dict(zip(graph.constants_of_prologue, run_prologue(graph.prologue, graph.weights_of_prologue)))
    assert torch.equal(values[graph.constants_of_prologue[1]], module.v.exp())
    check(graph, module, torch.randn(3, 4))


def test_views_of_weights_and_fills_are_no_constants():
    module = Function(lambda self, x: x + self.w.t() + torch.ones(4), w=torch.randn(4, 3))
    graph = rewritten(module, torch.randn(3, 4))
    assert graph.prologue is None
    check(graph, module, torch.randn(3, 4))


def test_a_graph_that_reads_no_tensor_is_folded():
    module = Function(lambda self: torch.arange(5.0) + 1)
    graph = rewritten(module)
    assert [entry.kind for entry in graph.inputs] == ["constant"]
    check(graph, module)


def test_random_numbers_are_not_folded():
    module = Function(lambda self, x: x + torch.rand(4))
    graph = rewritten(module, torch.zeros(4))
    assert not torch.equal(execute(graph, torch.zeros(4))[0], execute(graph, torch.zeros(4))[0])


def test_identities_go_but_a_returned_copy_stays_a_copy():
    module = Function(lambda self, x: (x.clone(), x.clone().view(4) + 1))
    x = torch.randn(4)
    graph = rewritten(module, x)
    assert targets(graph) == ["aten.clone.default", "aten.add.Tensor"]
    out = execute(graph, x)
    assert out[0].data_ptr() != x.data_ptr()


def test_duplicates_are_joined_but_signed_zero_and_types_keep_them_apart():
    module = Function(lambda self, x: (x + 1) * (x + 1) + torch.where(x > 0, 0.0, x) + torch.where(x > 0, -0.0, x))
    graph = rewritten(module, torch.randn(4), passes=["remove_duplicates"])
    assert targets(graph).count("aten.add.Tensor") == 3
    assert len([name for name in targets(graph) if "where" in name]) == 2


def test_two_equal_outputs_stay_two_tensors():
    module = Function(lambda self, x: (x + 1, x + 1))
    graph = rewritten(module, torch.randn(4))
    first, second = execute(graph, torch.randn(4))
    assert first.data_ptr() != second.data_ptr()


def test_a_linear_with_weight_input_is_not_packed():
    module = Function(lambda self, x, w: x @ w)
    graph = rewritten(module, torch.randn(3, 4), torch.randn(4, 5))
    assert targets(graph) == ["aten.mm.default"]


def test_an_unknown_pass_is_named():
    with pytest.raises(ConfigError, match="fold_constants"):
        RewriteConfig(["fold_constant"])


def attention(mask, **weights):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(self, q.shape[-2]))

    return Function(forward, **weights)


def lower(n):
    position = torch.arange(n)
    return position[None, :] <= position[:, None]


MASKS = {
    "all true": (lambda self, n: lower(n) | True, None, False),
    "all zero": (lambda self, n: torch.zeros(n, n) + torch.arange(n) * 0, None, False),
    "causal": (lambda self, n: lower(n).expand(2, 1, n, n), None, True),
    "causal with -inf": (lambda self, n: torch.where(lower(n), 0.0, float("-inf")), None, True),
    "causal with the least number": (lambda self, n: torch.where(lower(n), 0.0, torch.finfo().min), None, True),
    "window": (lambda self, n: lower(n) & lower(n).t(), "kept", False),
    "causal with a bias": (lambda self, n: torch.where(lower(n), 0.0, -5.0), "kept", False),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_known_values_are_read(name):
    mask, kept, causal = MASKS[name]
    module, inputs = attention(mask), torch.randn(3, 2, 4, 8, 16).unbind()
    graph = rewritten(module, *inputs)
    (call,) = [node for node in graph.module.graph.nodes if "attention" in str(node.target)]
    assert (call.kwargs.get("attn_mask") is not None) == (kept == "kept")
    assert (len(call.args) > 4 and call.args[4]) == causal
    check(graph, module, *inputs)


@pytest.mark.parametrize("mask, causal", [(lower(8) | True, False), (lower(8), True)])
def test_without_its_mask_attention_is_chosen_again(mask, causal):
    """The memory-efficient kernels are what torch takes on CUDA for a mask's sake; a CPU does not have them."""

    def forward(self, q, k, v):
        bias = torch.where(self.mask, 0.0, float("-inf")).expand(2, 4, 8, 8)
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, False)[0].contiguous()

    module, inputs = Function(forward, mask=mask), torch.randn(3, 2, 4, 8, 16).unbind()
    graph = rewritten(module, *inputs)
    (call,) = [node for node in graph.module.graph.nodes if "attention" in str(node.target)]
    assert call.target is torch.ops.aten.scaled_dot_product_attention.default
    assert call.args[3] is None and call.args[5] is causal
    check(graph, Function(lambda self, *x: F.scaled_dot_product_attention(*x, is_causal=causal)), *inputs)


def test_a_mask_from_a_weight_is_assumed_and_can_be_checked_again():
    module = attention(lambda self, n: self.visible & lower(n), visible=torch.ones(8, 8, dtype=torch.bool))
    graph = rewritten(module, *torch.randn(3, 2, 4, 8, 16).unbind())
    ((name, still),) = graph.assumed.items()
    assert "is causal" in name
    (constant,) = graph.constants_of_prologue
    assert still({constant: lower(8)})
    assert not still({constant: lower(8) & False})


def test_a_convolution_that_is_returned_keeps_eagers_strides():
    conv = nn.Conv2d(3, 8, 3, padding=1).eval()
    module = Function(lambda self, x: (self.conv(x), self.conv(x).permute(0, 2, 3, 1)))
    module.conv = conv
    x = torch.randn(2, 3, 6, 5)
    graph = rewritten(module, x)
    assert "mkldnn._convolution_pointwise.default" in targets(graph)
    check(graph, module, x)


def test_a_row_of_pixels_that_onednn_gives_channels_last_is_no_view_of_a_vector():
    """[2, 8, 1, 5] of strides (40, 1, 40, 8): FakeTensors take it for a view of shape [2, 40]."""
    module = Function(lambda self, x: self.conv(x).reshape(2, 40) @ self.w, w=torch.randn(40, 3))
    module.conv = nn.Conv2d(3, 8, (1, 3), padding=(0, 1)).eval()
    x = torch.randn(2, 3, 1, 5)
    graph = rewritten(module, x)
    assert "mkldnn._convolution_pointwise.default" in targets(graph)
    check(graph, module, x)


class OnWeightsAlone(nn.Module):
    """oneDNN gives the convolution's result channels last; what is computed from it was traced as contiguous."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.image = nn.Buffer(torch.randn(1, 3, 6, 5))

    def forward(self, x):
        y = F.relu(self.conv(self.image))
        return torch.cat((x, y), 1), y.flatten(1) + 1, y


def test_a_convolution_of_weights_alone_lies_as_the_graph_says():
    module, x = OnWeightsAlone().eval(), torch.randn(1, 2, 6, 5)
    graph = rewritten(module, x)
    placeholders = {node.name: node for node in graph.module.graph.nodes if node.op == "placeholder"}
    folded = [entry for entry in graph.inputs if entry.kind == "constant"]
    assert folded and all(entry.tensor.stride() == placeholders[entry.name].meta["val"].stride() for entry in folded)
    check(graph, module, x)


def test_a_convolution_of_weights_alone_is_right_also_after_a_change():
    module, x = OnWeightsAlone().eval(), torch.randn(1, 2, 6, 5)
    fast = optimize(module, x)
    for _ in range(2):
        for mine, eager in zip(fast(x), module(x), strict=True):
            torch.testing.assert_close(mine, eager.detach())
        with torch.no_grad():
            module.conv.weight.mul_(2)
            module.conv.bias.add_(1)


@pytest.mark.parametrize(
    ("name", "rows", "summed", "parts"),
    [
        ("prepack", 16, 64, 1),
        ("prepack", 1, 768, 1),
        ("prepack", 16, 333, 1),
        ("prepack", 16, 750, 2),
        ("prepack", 16, 769, 0),
        ("prepack_long_sums", 16, 769, 1),
    ],
)
def test_a_linear_layer_is_packed_where_it_stays_nearly_as_accurate_as_eagers(name, rows, summed, parts):
    module, x = nn.Linear(summed, 64), torch.randn(rows, summed)
    graph = rewritten(module, x, passes=[name])
    assert targets(graph).count("mkldnn._linear_pointwise.default") == parts
    with torch.no_grad():
        eager, (mine,) = module(x).double(), execute(graph, x)
        exact = module.double()(x.double())
    limit = 1.6 if name == "prepack" else 4.0
    assert (mine.double() - exact).norm() <= limit * (eager - exact).norm()


@pytest.mark.parametrize(("channels", "side", "packed"), [(8, 8, 1), (256, 8, 0), (256, 12, 1)])
def test_a_convolution_is_packed_where_it_stays_as_accurate_as_eagers(channels, side, packed):
    """Eager leaves one small image to MKL's matrix product, a larger one to oneDNN."""
    module, x = nn.Conv2d(channels, 32, 3, padding=1), torch.randn(1, channels, side, side)
    graph = rewritten(module, x, passes=["prepack"])
    assert targets(graph).count("mkldnn._convolution_pointwise.default") == packed
    with torch.no_grad():
        eager, (mine,) = module(x).double(), execute(graph, x)
        exact = module.double()(x.double())
    assert (mine.double() - exact).norm() <= 1.25 * (eager - exact).norm()
