"""Attention in the spellings that libraries use is put together; what only looks like it is not."""

import math

import pytest
import torch

from stages.rewrite.config import DEFAULT
from tests.graphs import graph_of, targets
from tests.rewrite.cuda import rewritten as on_cuda
from tests.rewrite.test_rewrite import Function, check, lower, rewritten

Q, K, V = torch.randn(3, 2, 4, 8, 16).unbind()


def written_out(q, k, v, mask=None, scale=0.25):
    scores = torch.matmul(q, k.transpose(-1, -2)) * scale
    return torch.matmul(torch.softmax(scores if mask is None else scores + mask, -1), v)


def divided(q, k, v):
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(2, 3)) / math.sqrt(16), dim=-1), v)


def scaled_query(q, k, v):
    return torch.softmax((q * 0.25) @ k.transpose(-2, -1), -1) @ v


def torch_math(q, k, v):
    """As torch takes scaled_dot_product_attention apart: a root of the scale on each side, products in float32."""
    scores = (q.float() * 0.5) @ (k.float().transpose(-1, -2) * 0.5) + torch.zeros(8, 8) * torch.arange(8)
    return (torch.ops.aten._safe_softmax(scores, -1) @ v.float()).to(q.dtype)


SPELLINGS = {"written out": written_out, "divided": divided, "scaled query": scaled_query, "torch's own": torch_math}


NAMES = ("aten.scaled_dot_product_attention.default", "torchweld.attention.default")
TO_LIBRARY = [name for name in DEFAULT if name != "short_attention"]


def attentions(graph):
    return [node for node in graph.module.graph.nodes if str(node.target) in NAMES]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling):
    module = Function(lambda self, q, k, v: SPELLINGS[spelling](q, k, v))
    graph = rewritten(module, Q, K, V)
    (call,) = attentions(graph)
    assert call.args[3] is None and call.args[5] is False
    assert call.kwargs["scale"] == pytest.approx(0.25)
    assert not [name for name in targets(graph) if "bmm" in name or "softmax" in name]
    check(graph, module, Q, K, V)


def test_half_precision_reaches_the_library_as_it_is_on_cuda():
    inputs = [tensor.bfloat16() for tensor in (Q, K, V)]
    module = Function(lambda self, q, k, v: torch_math(q, k, v))
    for graph, dtype in (
        (on_cuda(module, *inputs, passes=TO_LIBRARY), torch.bfloat16),
        (rewritten(module, *inputs), torch.float32),
    ):
        (call,) = attentions(graph)
        assert all(node.meta["val"].dtype is dtype for node in call.args[:3])
        check(graph, module, *inputs, tolerance=2e-2)


def test_a_causal_mask_becomes_a_flag_and_another_is_passed_on():
    causal = Function(lambda self, q, k, v: written_out(q, k, v, torch.where(lower(8), 0.0, float("-inf"))))
    (call,) = attentions(rewritten(causal, Q, K, V))
    assert call.args[3] is None and call.args[5] is True
    check(rewritten(causal, Q, K, V), causal, Q, K, V)
    bias = Function(lambda self, q, k, v: written_out(q, k, v, self.bias), bias=torch.randn(4, 8, 8))
    graph = rewritten(bias, Q, K, V)
    assert attentions(graph)[0].args[3] is not None
    check(graph, bias, Q, K, V)


NOT_ATTENTION = {
    "weights are returned": lambda q, k, v: (
        torch.softmax(q @ k.transpose(-1, -2), -1) @ v,
        torch.softmax(q @ k.transpose(-1, -2), -1),
    ),
    "softmax over queries": lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -2) @ v,
    "sigmoid": lambda q, k, v: torch.sigmoid(q @ k.transpose(-1, -2)) @ v,
    "heads are mixed": lambda q, k, v: (
        (torch.softmax(q @ k.transpose(-1, -2), -1).view(4, 2, 8, 8) @ v.view(4, 2, 8, 16)).view(8, 8, 16).mul(2)
    ),
}


@pytest.mark.parametrize("name", NOT_ATTENTION)
def test_what_is_no_attention_keeps_its_values(name):
    module = Function(lambda self, q, k, v: NOT_ATTENTION[name](q, k, v))
    graph = rewritten(module, Q, K, V)
    if name != "heads are mixed":
        assert not attentions(graph)
    check(graph, module, Q, K, V)


def test_the_graph_is_left_alone_without_the_pass():
    graph = graph_of(Function(lambda self, q, k, v: divided(q, k, v)), Q, K, V)
    assert targets(graph).count("aten.bmm.default") == 2


class InHalf(torch.nn.Module):
    """Torch's own form under autocast: q, k and v of one product, cast, scaled and copied; the result cast back."""

    def forward(self, x):
        q, k, v = x.view(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind()
        q, k, v = (tensor.float() for tensor in (q, k, v))
        scores = (q * 0.5).contiguous() @ (k.transpose(-1, -2) * 0.5).contiguous()
        return (torch.softmax(scores, -1) @ v.contiguous()).bfloat16().transpose(1, 2).reshape(2, 8, 64)


@pytest.mark.parametrize("passes", [DEFAULT, TO_LIBRARY], ids=["our kernel", "library"])
def test_nothing_is_copied_or_cast_on_the_way(passes):
    x = torch.randn(2, 8, 3 * 64).bfloat16()
    graph = on_cuda(InHalf(), x, passes=list(passes))
    (call,) = attentions(graph)
    storage = next(n for n in graph.module.graph.nodes if n.op == "placeholder").meta["val"].untyped_storage()._cdata
    assert all(node.meta["val"].untyped_storage()._cdata == storage for node in call.args[:3])
    assert (call.kwargs["scale"] if "scale" in call.kwargs else call.args[3]) == 0.25
    gone = ("_to_copy", "mul", "bmm", "_softmax", "reshape")
    assert not [name for name in targets(graph) if any(word in name for word in gone)]
    check(graph, InHalf(), x, tolerance=2e-2)


def test_a_scaled_value_is_no_attention():
    module = Function(lambda self, q, k, v: written_out(q, k, v * 2))
    graph = rewritten(module, Q, K, V)
    check(graph, module, Q, K, V)


def test_a_factor_of_another_reader_stays():
    def forward(self, q, k, v):
        scaled = q * 0.25
        return torch.softmax(scaled @ k.transpose(-1, -2), -1) @ v, scaled

    module = Function(forward)
    graph = rewritten(module, Q, K, V)
    assert attentions(graph)[0].kwargs["scale"] == 0.25
    check(graph, module, Q, K, V)
