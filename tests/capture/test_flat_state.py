"""Mutation, state and weights: what the recorded call may not leave behind, and what later calls must notice."""

import gc
import random
import weakref

import pytest
import torch
from torch import nn

from stages.capture import FlatCaller, SignatureMismatch
from tests.capture.helpers import assert_same, captured, check


def x(*shape):
    return torch.randn(*(shape or (3, 4)))


@torch.no_grad()
def test_mutated_inputs():
    def model(value, other):
        value.add_(other)
        return value, value * 2

    check(model, x(), x())
    check(lambda value: value.mul_(2), x())
    check(lambda value: value[0].zero_(), x())


@torch.no_grad()
def test_inputs_that_share_storage_are_mutated_as_in_eager():
    base = x(4, 4)

    def model(left, right):
        left.add_(1)
        return right * 2

    left, right = base[:2], base[1:3]
    result = captured(model, left, right)
    expected = base.clone()
    expected[:2] += 1
    torch.testing.assert_close(result.call(left, right), expected[1:3] * 2)
    torch.testing.assert_close(base, expected)
    if isinstance(result.call, FlatCaller):
        with pytest.raises(SignatureMismatch, match="share storage"):
            result.call(x(2, 4), x(2, 4))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, value):
        self.count += 1
        self.last.copy_(value.sum(0))
        return value * self.count


@torch.no_grad()
def test_mutated_buffers():
    model = Counting()
    result = check(model, x(), calls=3)
    # A buffer that the graph itself updates is no weight to be frozen.
    assert {entry.source: entry.kind for entry in result.graphs[0].inputs}["count"] == "user"


@torch.no_grad()
def test_batch_normalisation_in_training():
    result = check(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), x(2, 3, 8, 8), calls=3)
    assert not any(entry.kind == "weight" and "running" in entry.source for entry in result.graphs[0].inputs)


@torch.no_grad()
def test_a_parameter_the_model_writes_to_is_put_back():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(x(4))

        def forward(self, value):
            self.weight.mul_(0.5)
            return value * self.weight

    check(Model(), x())


@torch.no_grad()
def test_dropout_draws_as_eager_draws_and_leaves_the_generator():
    state = random.getstate()
    check(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), x())
    assert random.getstate() == state


@torch.no_grad()
def test_a_rebound_buffer_is_put_back_and_goes_through_dynamo():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("running", torch.ones(4))

        def forward(self, value):
            self.running = self.running * 0.5
            return value * self.running

    result = check(Model(), x(), flat=False, calls=3)
    assert "running" in result.notes[0]


@torch.no_grad()
def test_python_state_goes_through_dynamo():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.seen = []

        def forward(self, value):
            self.calls += 1
            self.seen.append(1)
            return value * len(self.seen)

    model = Model()
    result = captured(model, x())
    assert not isinstance(result.call, FlatCaller) and "calls" in result.notes[0]
    value, calls, seen = x(), model.calls, len(model.seen)
    torch.testing.assert_close(result.call(value), value * (seen + 1))
    assert (model.calls, len(model.seen)) == (calls + 1, seen + 1)


@torch.no_grad()
def test_a_tensor_stored_outside_the_result_goes_through_dynamo():
    store = {}

    def model(value, into):
        into["sum"] = value.sum()
        store["last"] = value * 2
        return value + 1

    into = {}
    result = captured(model, x(), into)
    assert not isinstance(result.call, FlatCaller) and into == {}
    value = x()
    result.call(value, into)
    torch.testing.assert_close(into["sum"], value.sum())
    torch.testing.assert_close(store["last"], value * 2)


@torch.no_grad()
def test_hooks_are_captured():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    check(model, x())


@torch.no_grad()
def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    model = Tied()
    ids = torch.arange(5)
    result = check(model, ids)
    assert len(result.graphs[0].inputs) == 2 and len(result.call.weights()) == 1
    model.head.weight = nn.Parameter(x(10, 4))
    with pytest.raises(SignatureMismatch, match="were one tensor"):
        result.call(ids)


@torch.no_grad()
def test_swapped_weights_are_used():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    value = x()
    result = captured(model, value)
    model[0].weight = nn.Parameter(x(4, 4))
    torch.testing.assert_close(result.call(value), model(value))
    assert any(weight is model[0].weight for weight in result.call.weights())
    model.load_state_dict({name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}, assign=True)
    torch.testing.assert_close(result.call(value), model(value))
    # One element, equal in value: only identity tells the two apart.
    model[1].bias = nn.Parameter(model[1].bias.clone())
    assert any(weight is model[1].bias for weight in result.call.weights())
    with torch.no_grad():
        model[1].bias += 1
    torch.testing.assert_close(result.call(value), model(value))


@torch.no_grad()
def test_weights_that_no_longer_fit():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    value = x()
    result = captured(model, value)
    kept = model[1].weight
    model[1].weight = nn.Parameter(x(4, 4).double())
    with pytest.raises(SignatureMismatch, match=r"weight '1.weight' is float64\[4, 4\]"):
        result.call(value)
    model[1].weight = kept
    assert_same(result.call(value), model(value))
    model[0] = nn.Linear(4, 4)
    with pytest.raises(SignatureMismatch, match="module '0' was replaced"):
        result.call(value)


@torch.no_grad()
def test_a_model_that_is_dropped_is_freed():
    model, value = nn.Linear(4, 4), x()
    result = captured(model, value)
    result.call(value)
    weight = weakref.ref(model.weight)
    del model, result
    gc.collect()
    assert weight() is None


@torch.no_grad()
def test_globals_and_closure_tensors_are_looked_up():
    offset = x(4)

    def model(value):
        return value + offset

    value = x()
    result = captured(model, value)
    assert_same(result.call(value), model(value))
    offset = x(4)
    assert_same(result.call(value), model(value))


def mismatch(result, pattern, *args, **kwargs):
    with pytest.raises(SignatureMismatch, match=pattern):
        result.call(*args, **kwargs)


@torch.no_grad()
def test_arguments_that_are_not_those_captured():
    result = captured(lambda values, scale=1.0, mode=None: values["a"] * scale, {"a": x()}, scale=2.0)
    mismatch(result, r"argument 0\['a'\] is float32\[2, 4\].*was float32\[3, 4\]", {"a": x(2, 4)}, scale=2.0)
    mismatch(result, "float64", {"a": x().double()}, scale=2.0)
    mismatch(result, r"strides \[1, 3\]", {"a": x(4, 3).t()}, scale=2.0)
    mismatch(result, "'scale' is 3.0; it was 2.0", {"a": x()}, scale=3.0)
    mismatch(result, r"with keys \['a', 'b'\]", {"a": x(), "b": x()}, scale=2.0)
    mismatch(result, "a list", [x()], scale=2.0)
    mismatch(result, "meta", {"a": x().to("meta")}, scale=2.0)
    mismatch(result, r"called with 1 and \(none\)", {"a": x()})
    mismatch(result, r"called with 1 and \(mode\)", {"a": x()}, mode=2.0)


def test_modes_that_are_not_those_captured():
    model, value = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), x()
    with torch.no_grad():
        result = captured(model, value)
        result.call(value)
        model[1].train()
        mismatch(result, "module '1' is not in the training mode", value)
        model.eval()
    mismatch(result, "gradients are on", value)
    with torch.inference_mode():
        assert_same(result.call(value), model(value))
    # Where nothing requires a gradient, grad mode changes nothing.
    plain = captured(lambda value: value * 2, value)
    with torch.no_grad():
        plain.call(value)
