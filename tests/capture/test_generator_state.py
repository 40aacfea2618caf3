"""Seed and offset of an attention on CUDA, traced with FakeTensors of CUDA: no GPU is needed but for the last test."""

import pytest
import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from stages.capture.aot import compile_aot
from stages.capture.generator_state import place_generator_state

aten = torch.ops.aten


def attention(dropout):
    return lambda q: aten._efficient_attention_forward.default(
        q, q, q, None, None, None, None, None, dropout, 0, compute_log_sumexp=True
    )[:4]


def traced(model):
    mode, graphs = FakeTensorMode(static_shapes=True), []
    with mode:
        value = torch.empty(1, 8, 4, 8, device="cuda")
    with torch.no_grad(), tracing(TracingContext(mode)):
        compile_aot(fx.symbolic_trace(model), [value], graphs.append)
    return graphs[0].module.graph


def results(graph):
    return next(iter(reversed(graph.nodes))).args[0]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_they_lie_on_the_cpu(dropout):
    found = results(traced(attention(dropout)))
    assert [node.meta["val"].device.type for node in found] == ["cuda", "cuda", "cpu", "cpu"]
    made_alone = [node.target is aten.empty.memory_format for node in found]
    assert made_alone == [False, False, not dropout, not dropout]


def forward_and_backward(dropout):
    """The graphs that AOTAutograd would make of a training step."""

    def backward(gradient, q, out, logsumexp, seed, offset):
        return aten._efficient_attention_backward.default(
            gradient, q, q, q, None, out, None, None, 8, 8, logsumexp, dropout, seed, offset, 0, False
        )[:3]

    with FakeTensorMode(), torch.no_grad():
        q = torch.empty(1, 8, 4, 8, device="cuda")
        return make_fx(attention(dropout))(q), make_fx(backward)(q, q, *attention(dropout)(q))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_both_graphs_of_a_training_step_agree(dropout):
    """With dropout the backward kernel reads them on the CPU. Without, nobody reads them, and they stay on the GPU."""
    forward, backward = forward_and_backward(dropout)
    for module in (forward, backward):
        place_generator_state(module, training=True)
        module.graph.lint()
    given = [node.meta["val"].device.type for node in results(forward.graph)[2:]]
    taken = [node.meta["val"].device.type for node in backward.graph.find_nodes(op="placeholder")[-2:]]
    assert given == taken == (["cpu", "cpu"] if dropout else ["cuda", "cuda"])


@pytest.mark.gpu
@pytest.mark.parametrize("runtime", ["default", "steps"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_training_step_with_dropout_is_eagers(dropout, runtime):
    from pipeline.backend import torchweld

    def model(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=dropout) * 2

    q = torch.randn(2, 4, 16, 8, device="cuda", requires_grad=True)  # in float32: the memory-efficient kernel
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=torchweld, options={"runtime": runtime})
    for _ in range(3):
        gradients = []
        for call in (model, compiled):
            torch.manual_seed(0)
            (gradient,) = torch.autograd.grad(call(q).square().sum(), q)
            gradients.append(gradient)
        torch.testing.assert_close(*gradients)
