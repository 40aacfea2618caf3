"""The bias of float32 products as an addition, for CUDA: which products it leaves, values, and what fusion makes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stages import fusion, rewrite
from stages.ir.library_flags import float32_products
from stages.ir.program import Extern, Launch
from stages.rewrite.config import RewriteConfig
from stages.rewrite.linear_bias import LARGEST_RESULT
from tests.fusion.helpers import config
from tests.graphs import graph_of, targets
from tests.rewrite.cuda import check, check_changed, rewritten
from tests.rewrite.test_products import Attention, products
from tests.rewrite.test_rewrite import Function

aten = torch.ops.aten
PASS = ["peel_linear_bias"]
TOLERANCE = 1e-5  # float32, sums of at most 256 terms near 1


class Feedforward(nn.Module):
    """Two linear layers with GELU in between, a residual and a norm."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(x + self.down(F.gelu(self.up(x))))


def test_biases_go_into_the_kernels_that_read_the_products():
    module, x = Feedforward(), torch.randn(3, 5, 16)
    graph = rewritten(module, x)
    assert [node.target for node in products(graph)] == [aten.mm.default] * 2
    assert graph.notes[-1] == "peel_linear_bias: 2 biases of float32 products added where it can fuse"
    check(graph, module, x, tolerance=TOLERANCE)
    check_changed(graph, module, x, tolerance=TOLERANCE)
    graph.device = x.device  # where its values are, which fusion looks at
    steps = fusion.run(graph, config()).steps
    assert [type(step) for step in steps] == [Extern, Launch, Extern, Launch]


def test_merged_and_padded_products_lose_their_biases_too():
    module, x = Attention(), torch.randn(2, 5, 16)
    graph = rewritten(module, x)
    (node,) = products(graph)
    assert node.target is aten.mm.default and node.meta["val"].shape == (10, 64)
    check(graph, module, x, tolerance=TOLERANCE)
    head, x = nn.Linear(256, 1001), torch.randn(70, 256)
    graph = rewritten(head, x)
    (node,) = products(graph)
    assert node.target is aten.mm.default and node.meta["val"].shape == (70, 1004)
    check(graph, head, x, tolerance=TOLERANCE)
    check_changed(graph, head, x, tolerance=TOLERANCE)


PEELED = {
    "a vector": lambda self, x, w, b: torch.addmm(b, x, w),
    "a matrix of one row": lambda self, x, w, b: torch.addmm(b.view(1, -1), x, w),
    "factors of one": lambda self, x, w, b: torch.addmm(b, x, w, beta=1, alpha=1.0),
    "a result that is turned": lambda self, x, w, b: torch.addmm(b, x, w).t(),
}
KEPT = {
    "a matrix": lambda self, x, w, b: torch.addmm(x[:, :6], x, w),
    "a column": lambda self, x, w, b: torch.addmm(x[:, :1], x, w),
    "a scaled bias": lambda self, x, w, b: torch.addmm(b, x, w, beta=2),
    "a scaled product": lambda self, x, w, b: torch.addmm(b, x, w, alpha=2),
    "no bias": lambda self, x, w, b: x @ w,
}


def operands(dtype=torch.float32):
    return [torch.randn(size).to(dtype) for size in ((3, 8), (8, 6), (6,))]


@pytest.mark.parametrize("name", PEELED)
def test_a_row_is_peeled(name):
    module, inputs = Function(PEELED[name]), operands()
    graph = rewritten(module, *inputs, passes=PASS)
    called = [target for target in targets(graph) if target not in ("aten.view.default", "aten.t.default")]
    assert called == ["aten.mm.default", "aten.add.Tensor"]
    check(graph, module, *inputs, tolerance=TOLERANCE)


@pytest.mark.parametrize("name", KEPT)
def test_anything_else_stays(name):
    module, inputs = Function(KEPT[name]), operands()
    graph = rewritten(module, *inputs, passes=PASS)
    assert not graph.notes and aten.add.Tensor not in [node.target for node in graph.module.graph.nodes]
    check(graph, module, *inputs, tolerance=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_stay(dtype):
    graph = rewritten(Function(PEELED["a vector"]), *operands(dtype), passes=PASS)
    assert targets(graph) == ["aten.addmm.default"]


def test_products_in_tf32_stay():
    with float32_products(tf32=True):
        graph = rewritten(Function(PEELED["a vector"]), *operands(), passes=PASS)
    assert targets(graph) == ["aten.addmm.default"]


def test_a_product_that_fills_the_device_stays():
    rows = LARGEST_RESULT // 1024
    for size, target in ((rows - 1, aten.mm.default), (rows, aten.addmm.default)):
        graph = rewritten(nn.Linear(4, 1024), torch.randn(size, 4), passes=PASS)
        assert [node.target for node in products(graph)] == [target]


def test_on_a_cpu_and_in_training_nothing_is_peeled():
    graph = graph_of(Function(PEELED["a vector"]), *operands())
    assert targets(rewrite.run(graph, RewriteConfig(PASS))) == ["aten.addmm.default"]
    graph.device, graph.training = torch.device("cuda"), True
    assert targets(rewrite.run(graph, RewriteConfig(PASS))) == ["aten.addmm.default"]
