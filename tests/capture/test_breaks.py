"""Graph breaks and failures: where, why, and that the model still does what eager does."""

import linecache
import threading

import pytest
import torch
from torch import nn

from stages.capture import CaptureConfig, FlatCaller, run
from stages.capture.config import CaptureConfig as Config
from stages.ir.errors import ConfigError, UserError
from tests.capture.helpers import assert_same, captured


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def x(*shape):
    return torch.randn(*(shape or (3, 4)))


def prints(value):
    total = value * 2
    print("between")  # breaks here
    return total + 1


def branches(value):
    total = value * 2
    if total.sum() > 0:  # breaks here
        return total + 1
    return total - 1


def reads_a_size(value):
    total = value * 2
    size = int(total.abs().sum().item()) % 2 + 1  # breaks here
    return total[:size]


def has_a_size_that_depends_on_data(value):
    total = value * 2
    return total[total > 0] + 1  # breaks here


def in_a_loop(value):
    for _ in range(2):
        value = value * 2
        print("loop")  # breaks here
    return value


BREAKING = [prints, branches, reads_a_size, has_a_size_that_depends_on_data, in_a_loop]


def place(model):
    first = model.__code__.co_firstlineno
    line = next(number for number in range(first, first + 9) if "breaks here" in linecache.getline(__file__, number))
    return line, linecache.getline(__file__, line).strip()


@pytest.mark.parametrize("model", BREAKING)
def test_a_break_is_an_error_with_its_place_under_fullgraph(model):
    line, code = place(model)
    with pytest.raises(UserError) as raised:
        captured(model, x())
    assert f"{__file__}:{line}: {code}" in str(raised.value)
    assert "capture.fullgraph=false" in str(raised.value)


@pytest.mark.parametrize("model", BREAKING)
def test_a_break_is_recorded_and_the_call_goes_on(model):
    line, code = place(model)
    value = x()
    result = captured(model, value, fullgraph=False)
    first = result.breaks[0]
    assert (first.file, first.line, first.code) == (__file__, line, code) and first.reason
    assert not isinstance(result.call, FlatCaller)
    assert_same(result.call(value), model(value))


def branches_on_a_number_later(value):
    positive = (value > 0).any().item()  # breaks here
    total = value * 2
    return total + 1 if positive else total


def test_where_only_a_whole_graph_would_stop_is_no_break():
    """A whole graph keeps the number and stops where the model branches on it; in parts eager makes the number."""
    line, _ = place(branches_on_a_number_later)
    value = x()
    result = captured(branches_on_a_number_later, value, fullgraph=False)
    assert [found.line for found in result.breaks] == [line]
    assert_same(result.call(value), branches_on_a_number_later(value))


def test_a_number_that_stays_a_tensor_is_no_break():
    def model(value):
        total = value * 2
        return total * total.sum().item()

    result = captured(model, x())
    value = x()
    assert isinstance(result.call, FlatCaller)
    assert_same(result.call(value), model(value))
    targets = {str(node.target) for node in result.graphs[0].module.graph.nodes}
    assert not any(target.startswith("prims.") for target in targets)


def test_the_graphs_on_both_sides_of_a_break_have_slots():
    value = x()
    result = captured(prints, value, fullgraph=False)
    assert len(result.graphs) == len(result.slots) == 2
    called = []
    for slot in result.slots:
        slot.target = lambda arguments, slot=slot: called.append(slot) or slot.graph.module(*arguments)
    assert_same(result.call(value), prints(value))
    assert called == result.slots


def test_a_new_shape_behind_a_break_makes_new_slots():
    result = captured(prints, x(), fullgraph=False)
    new = []
    result.when_new(new.append)
    value = x(5, 4)
    assert_same(result.call(value), prints(value))
    assert [slot.graph.inputs[0].kind for slot in new] == ["user", "user"]


def test_breaks_inside_modules_and_mutated_buffers_between_them():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("count", torch.zeros(4))

        def forward(self, value):
            self.count += 1
            print("first")
            value = self.linear(value)
            print("second")
            return value + self.count

    model = Model()
    result = captured(model, x(), fullgraph=False)
    assert [entry.code for entry in result.breaks] == ['print("first")', 'print("second")']
    assert torch.equal(model.count, torch.zeros(4))
    value = x()
    assert_same(result.call(value), model.linear(value) + 1)


def test_the_same_model_is_captured_again_and_again():
    for _ in range(12):
        assert isinstance(captured(nn.Linear(4, 4), x()).call, FlatCaller)
        assert captured(prints, x(), fullgraph=False).breaks


def test_a_model_that_fails_on_its_arguments():
    with pytest.raises(UserError, match=r"test_breaks.py:\d+: return left @ right"):
        captured(mismatched, x(), x())
    with pytest.raises(UserError, match=r"test_breaks.py:\d+: return left @ right"):
        captured(mismatched, x(), x(), fullgraph=False)


def mismatched(left, right):
    return left @ right


def test_a_graph_that_cannot_be_traced_runs_in_eager(monkeypatch):
    def refuses(*_):
        raise RuntimeError("cannot trace this")

    monkeypatch.setattr("stages.capture.sizes.compile_aot", refuses)
    value = x()
    with pytest.raises(UserError, match="cannot trace this"):
        captured(nn.Linear(4, 4), value)
    model = nn.Linear(4, 4)
    result = captured(model, value, fullgraph=False)
    assert any("cannot trace this" in note for note in result.notes)
    assert len(result.eager) == 1 and "cannot trace this" in result.eager[0]
    assert_same(result.call(value), model(value))


def test_two_threads_capture_at_once():
    results = {}

    def work(number):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, number + 1)).eval()
        value = x()
        with torch.no_grad():
            results[number] = (run(model, (value,), {}, CaptureConfig()), model, value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, model, value in results.values():
        assert isinstance(result.call, FlatCaller) and not result.breaks
        assert_same(result.call(value), model(value))
    assert len(results) == 4


def test_the_config_is_checked():
    with pytest.raises(ConfigError, match=r"capture\.sizes_kept"):
        Config(sizes_kept=0)
    with pytest.raises(ConfigError, match=r"capture\.fullgraph"):
        Config(fullgraph="yes")


def test_code_that_was_compiled_too_often_is_captured_all_the_same():
    """By torch.compile, until Dynamo gives it up."""

    class Model(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, value):
            return torch.tanh(value) * self.factor

    for factor in range(12):
        torch.compile(Model(factor), backend="eager")(x())
    model, value = Model(50), x()
    result = captured(model, value)
    assert isinstance(result.call, FlatCaller) and len(result.graphs) == 1
    assert_same(result.call(value), model(value))


def test_a_model_that_changes_at_every_call_goes_on_beyond_dynamos_limit():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, value):
            self.calls += 1
            return value * self.calls

    model, value = Counting(), x()
    result = captured(model, value)
    assert not isinstance(result.call, FlatCaller)
    for number in range(model.calls + 1, 15):
        assert_same(result.call(value), value * number)
