"""An injected fault is found, and shrunk to the few lines that show it."""

import pytest
import torch

from scripts.fuzzing.campaign import Plan, examine
from scripts.fuzzing.case import Setting, Step
from scripts.fuzzing.shrink import shrink, size_of
from stages.fusion.lowering.registry import LOWERINGS
from stages.ir.expr import const, op
from tests.fuzzing.cases import case_of, dense

PLAN = Plan(seed=0, graphs=1, minutes=None)


def kinds_of(case, engine="interpreted"):
    (found,) = examine([case], engine, PLAN, lambda position: None)
    return {difference.kind for difference in found}


@pytest.fixture
def faulty_tanh(monkeypatch):
    """tanh is a hundred-thousandth too large."""
    tanh = torch.ops.aten.tanh.default
    right = LOWERINGS[tanh]

    def wrong(context, x):
        value = right(context, x)
        return context.result(lambda at: op("mul", value.at(at), const(1 + 1e-5, value.at(at).dtype)))

    monkeypatch.setitem(LOWERINGS, tanh, wrong)


def long_case():
    """Ten steps over three inputs; tanh is in the middle."""
    values = [0.3 * number - 1.1 for number in range(24)]
    inputs = [dense(values, (4, 6)), dense(values[:6]), dense(range(4), dtype=torch.int64)]
    steps = [
        ("{0} * {1}", (0, 1)),
        Step("{0}.permute((1, 0))", (3,)),
        ("{0}.sum((0,), keepdim=True)", (4,)),
        ("torch.tanh({0})", (4,)),
        ("{0} + {1}", (6, 5)),
        Step("{0}.reshape((3, 8))", (7,)),
        ("torch.softmax({0}, 1)", (8,)),
        Step("torch.cat([{0}, {1}], 0)", (8, 9)),
        Step("{0} + 1", (2,)),
        ("{0} * 2", (10,)),
    ]
    return case_of(inputs, steps, outputs=(11, 9, 12))


def test_without_the_fault_nothing_is_found():
    assert kinds_of(long_case()) == set()


def test_a_fault_is_shrunk_to_one_line(faulty_tanh):
    case = long_case()
    assert kinds_of(case) == {"value"}
    small = shrink(case, lambda smaller: "value" in kinds_of(smaller), seconds=60)
    assert [step.code for step in small.steps] == ["torch.tanh({0})"]
    assert [len(storage.values) for storage in small.storages] == [1]
    assert small.outputs == (1,)
    assert "value" in kinds_of(small)


def test_shrinking_keeps_what_matters():
    """By a predicate alone: the write, its input and the setting stay, all else goes."""
    inputs = [dense([1.5, 2.5, 3.5, 4.5], (2, 2)), dense([7.0, 8.0])]
    steps = [
        ("{0} + {1}", (0, 1)),
        Step("{0}.mul_(2)", (0,), rounds=True, mutates=True),
        ("torch.exp({0})", (2,)),
        Step("{0}[:1]", (4,)),
    ]
    case = case_of(inputs, steps, outputs=(2, 5))
    case = type(case)(case.storages, case.inputs, case.steps, case.outputs, Setting(fusion="none", buffers="none"))

    def fails(smaller):
        return smaller.setting.fusion == "none" and any(step.mutates for step in smaller.steps)

    small = shrink(case, fails, seconds=30)
    assert [step.code for step in small.steps] == ["{0}.mul_(2)"]
    assert (small.setting.fusion, small.setting.buffers) == ("none", "best")
    assert len(small.inputs) == 1
    assert size_of(small) < size_of(case)


def test_without_faults_no_case_is_tried_that_raises_in_eager():
    """Halving the input would put the index out of range, which on a GPU ends the process."""
    case = case_of([dense([float(number) for number in range(16)])], [Step("{0}[torch.tensor([12])]", (0,))])
    tried = []

    def fails(smaller):
        tried.append(smaller)
        return smaller.steps == case.steps

    assert shrink(case, fails, seconds=20).inputs[0].shape[0] == 1
    tried.clear()
    assert shrink(case, fails, seconds=20, faults=False).inputs[0].shape[0] == 13
    assert tried and all(each.run(each.tensors()) for each in tried)
