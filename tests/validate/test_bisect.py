"""The first wrong step, on a graph with a step made wrong by hand."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from stages.validate import Floor, ValidateConfig, first_wrong_step, node_values

CONFIG = ValidateConfig(floors={"fp32": Floor(1e-6, 2e-6)})


def graph():
    def function(x, w):
        a = torch.mm(x, w)
        b = torch.tanh(a)
        values, index = torch.topk(b, 2)
        return torch.softmax(values, -1), index

    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    inputs = [x, torch.eye(16) + x.T @ x / 16]
    return make_fx(function)(*inputs), inputs


def values(float64):
    module, inputs = graph()
    if float64:
        inputs = [value.double() for value in inputs]
    return node_values(module, inputs, float64)


def test_values_are_those_of_eager_in_the_graphs_order():
    _, (x, w) = graph()
    got = dict(values(True))
    assert [name for name in got if name in ("mm", "tanh", "_softmax")] == ["mm", "tanh", "_softmax"]
    assert {"topk.0", "topk.1"} <= got.keys()
    torch.testing.assert_close(got["tanh"], torch.tanh(x.double() @ w.double()), rtol=1e-14, atol=1e-14)
    assert all(value.dtype in (torch.float64, torch.int64) for value in got.values())


def test_casts_in_the_graph_are_raised():
    module = make_fx(lambda x: torch.softmax(x.to(torch.bfloat16), -1, dtype=torch.float32))(torch.randn(4))
    x = torch.randn(4, dtype=torch.float64)
    *_, (_, last) = node_values(module, [x], float64=True)
    torch.testing.assert_close(last, torch.softmax(x, -1), rtol=1e-14, atol=0)


def test_a_view_is_taken_of_values_that_lie_as_in_the_graph():
    """In float64 an operator may give its result other strides than those that the graph's views were made for."""
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))

    def function(x):
        return torch.ops.aten.view.default(torch.tanh(x), [2, 60]) * 2

    module = make_fx(function)(x)
    *_, (_, last) = node_values(module, [x.double().to(memory_format=torch.channels_last)], float64=True)
    torch.testing.assert_close(last, torch.tanh(x.double()).reshape(2, 60) * 2, rtol=1e-14, atol=0)


def test_right_values_are_right():
    assert first_wrong_step(values(False), values(False), values(True), CONFIG, "fp32") is None


def test_the_first_wrong_value_is_named():
    steps = [
        (name, value * 1.001 if name in ("tanh", "softmax", "_softmax") else value)
        for name, value in values(False)
        if name in ("mm", "tanh", "_softmax")
    ]
    wrong = first_wrong_step(steps, values(False), values(True), CONFIG, "fp32", wanted={"mm", "tanh", "_softmax"})
    assert (wrong.position, wrong.name, wrong.previous) == (1, "tanh", "mm")
    assert wrong.errors.relative_error == pytest.approx(1e-3, rel=1e-2)
    assert "'tanh'" in str(wrong) and "up to 'mm' are right" in str(wrong)


def test_nan_and_wrong_indices_are_found():
    bad = [(name, torch.full_like(value, torch.nan) if name == "tanh" else value) for name, value in values(False)]
    assert first_wrong_step(bad, values(False), values(True), CONFIG, "fp32").reason.startswith("NaN at 128 elements")
    bad = [(name, value + 1 if value.dtype is torch.int64 else value) for name, value in values(False)]
    assert "16 of 16 elements differ" in first_wrong_step(bad, values(False), values(True), CONFIG, "fp32").reason


def test_an_unknown_name_is_an_error():
    with pytest.raises(KeyError, match="named 'nope'"):
        first_wrong_step([("nope", torch.ones(1))], values(False), values(True), CONFIG, "fp32")
