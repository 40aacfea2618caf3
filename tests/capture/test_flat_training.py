"""Captured with gradients: forward and backward graphs, and the gradients of eager."""

import copy

import pytest
import torch
from torch import nn

from stages.capture import SignatureMismatch
from tests.capture.helpers import assert_same, captured


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 2)

    def forward(self, value):
        hidden = torch.nn.functional.gelu(self.norm(self.first(value)))
        return {"logits": self.second(hidden), "hidden": hidden}


def gradients(model, result, value):
    loss = result["logits"].pow(2).sum() + result["hidden"].sum()
    return torch.autograd.grad(loss, [value, *model.parameters()])


def test_gradients_and_buffers_are_eagers():
    model = Model()
    eager_model = copy.deepcopy(model)
    value = torch.randn(5, 4, requires_grad=True)
    result = captured(model, value)
    assert [graph.training for graph in result.graphs] == [True, True]
    assert {entry.kind for graph in result.graphs for entry in graph.inputs} == {"user"}
    assert "first.weight" in {entry.source for entry in result.graphs[0].inputs}
    for _ in range(2):
        ours, eager = result.call(value), eager_model(value)
        assert_same(ours, eager)
        for one, other in zip(gradients(model, ours, value), gradients(eager_model, eager, value), strict=True):
            torch.testing.assert_close(one, other)
        assert_same(dict(model.state_dict()), dict(eager_model.state_dict()))


def test_backward_graphs_run_through_their_slots():
    model, value = nn.Linear(4, 4), torch.randn(3, 4)
    result = captured(model, value)
    calls = []
    for slot in result.slots:

        def target(arguments, slot=slot):
            calls.append(slot)
            return slot.graph.module(*arguments)

        slot.target = target
    result.call(value).sum().backward()
    assert calls == result.slots and len(calls) == 2
    torch.testing.assert_close(model.weight.grad, value.sum(0).expand(4, 4))


def test_requires_grad_of_an_argument_is_part_of_the_signature():
    result = captured(nn.Linear(4, 4), torch.randn(3, 4))
    with pytest.raises(SignatureMismatch, match="requires_grad"):
        result.call(torch.randn(3, 4, requires_grad=True))
