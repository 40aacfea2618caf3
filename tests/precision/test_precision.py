"""Precision: autocast is torch's, and wide products keep its values."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stages import precision
from stages.ir.errors import ConfigError
from stages.precision import PrecisionConfig, capture_context
from tests.graphs import execute, graph_of, targets

CPU = torch.device("cpu")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 8, 3, 2, 16).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 8, 32)
        return self.conv(out), q @ k.transpose(-1, -2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_wide_products_have_autocasts_types_and_values(dtype):
    torch.manual_seed(0)
    module, x = Attention().eval(), torch.randn(2, 8, 32)
    config = PrecisionConfig(mode="amp", amp_dtype=dtype, wide_products="always")
    with capture_context(config, CPU), torch.no_grad():
        eager = module(x)
        graph = graph_of(module, x)
    with torch.no_grad():
        exact = module.double()(x.double())
        module.float()
    graph = precision.run(graph, config)
    products = [
        node
        for node in graph.module.graph.nodes
        if str(node.target) in ("aten.addmm.default", "aten.convolution.default", "aten.bmm.default")
    ]
    assert len(products) == 3 and all(node.meta["val"].dtype is torch.float32 for node in products)
    assert "3 " not in graph.notes[0] and "run in float32" in graph.notes[0]
    for mine, theirs, truth in zip(execute(graph, x), eager, exact, strict=True):
        assert mine.dtype is theirs.dtype is getattr(torch, dtype)
        assert (mine.double() - truth).norm() <= 1.1 * (theirs.double() - truth).norm()


def test_never_leaves_the_graph_alone():
    config = PrecisionConfig(mode="amp", wide_products="never")
    with capture_context(config, CPU), torch.no_grad():
        graph = graph_of(Attention().eval(), torch.randn(2, 8, 32))
    before = targets(graph)
    assert targets(precision.run(graph, config)) == before and graph.notes == []


def test_the_context_puts_back_what_it_set():
    before = torch.get_float32_matmul_precision()
    with capture_context(PrecisionConfig(mode="tf32"), CPU):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_an_unknown_mode_is_named():
    with pytest.raises(ConfigError, match="did you mean 'amp'"):
        PrecisionConfig(mode="apm")
