"""Matrix products for CUDA: siblings merged, sizes padded. Values against eager in float64 on the CPU."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stages.rewrite.edit import tensor_of
from tests.graphs import targets
from tests.rewrite.cuda import check, check_changed, rewritten
from tests.rewrite.test_rewrite import Function

aten = torch.ops.aten
torch.manual_seed(0)


def products(graph):
    return [node for node in graph.module.graph.nodes if node.target in (aten.mm.default, aten.addmm.default)]


class Attention(nn.Module):
    """Query, key and value of one input; keys and values of fewer heads; optional biases."""

    def __init__(self, biases=(True, True, True), heads=4, shared=2, depth=8):
        super().__init__()
        self.heads, self.shared, self.depth = heads, shared, depth
        widths = (heads * depth, shared * depth, shared * depth)
        names = zip("qkv", widths, biases)
        self.maps = nn.ModuleDict({name: nn.Linear(16, width, bias=bias) for name, width, bias in names})

    def forward(self, x):
        batch, rows, _ = x.shape
        heads = {"q": self.heads, "k": self.shared, "v": self.shared}
        q, k, v = (
            self.maps[name](x).view(batch, rows, heads[name], self.depth).transpose(1, 2) for name in ("q", "k", "v")
        )
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=self.shared != self.heads)


@pytest.mark.parametrize("biases", [(True,) * 3, (False,) * 3, (True, False, True)])
@pytest.mark.parametrize("shared", [4, 2])
def test_query_key_and_value_are_one_product(biases, shared):
    module, x = Attention(biases, shared=shared).double(), torch.randn(2, 5, 16).double()
    graph = rewritten(module, x)
    (node,) = products(graph)
    assert tensor_of(node).shape == (10, 32 + 2 * 8 * shared)
    assert (node.target is aten.addmm.default) == any(biases)
    parts = [each for each in graph.module.graph.nodes if each.target is aten.slice.Tensor and each.args[0] is node]
    storage = tensor_of(node).untyped_storage()._cdata
    assert len(parts) == 3 and all(tensor_of(part).untyped_storage()._cdata == storage for part in parts)
    check(graph, module, x)
    check_changed(graph, module, x)


def test_gate_and_up_and_what_is_computed_between():
    """A weight that is computed after the first product, and a sibling that other work separates from it."""

    def forward(self, x):
        gate = F.silu(x @ self.gate)
        return gate * (x @ (self.up * 2).exp()), gate

    module = Function(forward, gate=torch.randn(8, 6).double(), up=torch.randn(8, 6).double())
    x = torch.randn(3, 8).double()
    graph = rewritten(module, x)
    assert len(products(graph)) == 1
    check(graph, module, x)
    check_changed(graph, module, x)


NO_SIBLINGS = {
    "weights that are inputs": (lambda self, x, w: (x @ w, x @ self.w), 2),
    "another input": (lambda self, x, w: (x @ self.w, (x + 1) @ self.w), 2),
    "unaligned parts": (lambda self, x, w: (x @ self.w[:, :3], x @ self.w[:, 3:]), 2),
    "scaled": (lambda self, x, w: (torch.addmm(self.b, x, self.w, alpha=2), x @ self.w), 2),
    "a bias for each row": (lambda self, x, w: (torch.addmm(x[:, :6], x, self.w), x @ self.w), 2),
    "alone": (lambda self, x, w: (x @ self.w).relu(), 1),
}


@pytest.mark.parametrize("name", NO_SIBLINGS)
def test_what_is_not_merged(name):
    function, count = NO_SIBLINGS[name]
    module = Function(function, w=torch.randn(8, 6).double(), b=torch.randn(6).double())
    inputs = torch.randn(3, 8).double(), torch.randn(8, 6).double()
    graph = rewritten(module, *inputs, passes=["merge_siblings"])
    assert len(products(graph)) == count and not graph.notes
    check(graph, module, *inputs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inner, columns", [(256, 1001), (255, 1000), (253, 999)])
def test_unaligned_sizes_are_padded(bias, inner, columns):
    module, x = nn.Linear(inner, columns, bias=bias).double(), torch.randn(2, 70, inner).double()
    graph = rewritten(module, x)
    (node,) = products(graph)
    assert all(size % 2 == 0 for size in tensor_of(node.args[-1]).shape)  # two float64 are 16 bytes
    assert tensor_of(node).shape[1] - columns in (0, 1)
    check(graph, module, x)
    check_changed(graph, module, x)


def test_the_unit_is_sixteen_bytes():
    module, x = nn.Linear(256, 1002).bfloat16(), torch.randn(70, 256).bfloat16()
    assert tensor_of(products(rewritten(module, x))[0]).shape[1] == 1008


def test_what_reads_a_padded_product_reads_a_view():
    module = Function(lambda self, x: self.linear(x).view(2, 35, 1001).softmax(-1))
    module.linear = nn.Linear(256, 1001).double()
    x = torch.randn(70, 256).double()
    graph = rewritten(module, x)
    assert not [name for name in targets(graph) if "clone" in name or "copy" in name]
    check(graph, module, x)


NOT_PADDED = {
    "aligned": (256, 1000, 70),
    "small": (64, 101, 70),
}


@pytest.mark.parametrize("name", NOT_PADDED)
def test_what_is_not_padded(name):
    inner, columns, rows = NOT_PADDED[name]
    graph = rewritten(nn.Linear(inner, columns).double(), torch.randn(rows, inner).double(), passes=["pad_unaligned"])
    assert not graph.notes


def test_a_weight_that_is_an_input_is_not_padded():
    module = Function(lambda self, x, w: x @ w)
    graph = rewritten(module, torch.randn(70, 256).double(), torch.randn(256, 1001).double())
    assert not graph.notes and len(targets(graph)) == 1


def gelu_new(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelus(graph):
    return [node for node in graph.module.graph.nodes if node.target is aten.gelu.default]


def test_a_gelu_that_is_spelled_out_is_one_operation():
    module, x = Function(lambda self, x: gelu_new(x) + 1), torch.randn(4, 6).double()
    graph = rewritten(module, x)
    assert targets(graph) == ["aten.gelu.default", "aten.add.Tensor"]
    check(graph, module, x)


def test_a_gelu_under_autocast_is_rounded_once():
    """The cube is computed in float32, and the next product rounds the result, behind a reshape."""

    def forward(self, x):
        y = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x.float(), 3.0))))
        return y.view(8, 3).bfloat16() * 2

    module, x = Function(forward), torch.randn(4, 6).bfloat16()
    graph = rewritten(module, x)
    (node,) = gelus(graph)
    assert node.args[0].op == "placeholder" and not [name for name in targets(graph) if "_to_copy" in name]
    check(graph, module, x, tolerance=2e-2)
    kept = Function(lambda self, x: (forward(self, x), 0.5 * x * (1.0 + torch.tanh(x.float()))))
    check(rewritten(kept, x), kept, x, tolerance=2e-2)


NO_GELUS = {
    "another factor": lambda x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3.0)))),
    "another power": lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 2)))),
    "another operand": lambda x: 0.5 * (x + 1) * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3.0))),
    "plain": lambda x: torch.tanh(x),
}


@pytest.mark.parametrize("name", NO_GELUS)
def test_other_formulas_are_no_gelus(name):
    module, x = Function(lambda self, x: NO_GELUS[name](x)), torch.randn(4, 6).double()
    graph = rewritten(module, x)
    assert not gelus(graph)
    check(graph, module, x)
