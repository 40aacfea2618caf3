"""Weights changed after compilation: in place, replaced, moved; what can be brought up to date and what cannot."""

import dataclasses

import pytest
import torch

from stages import buffers, runtime
from stages.buffers import BuffersConfig
from stages.ir.graph import GraphInput
from stages.ir.kernel import IRError
from stages.ir.program import Extern, Prologue, TensorRef
from stages.runtime import RuntimeConfig, StaleProgram
from tests.buffers.programs import launch, program, scale_kernel, whole
from tests.runtime.doubles import compiled

aten = torch.ops.aten
VECTOR = torch.arange(4.0)


def frozen(passed=True, assumed=None, constant=None):
    """x + c with c = 10 w, c made by the prologue; the weight is one of the call's inputs if `passed`."""
    weight = torch.nn.Parameter(torch.ones(4))
    entry = GraphInput("w", "weight", "layer.weight", weight)
    runs = []

    def prologue(value):
        runs.append(value)
        return (value * 10, value.sum())

    steps = [Extern(aten.add.out, (whole("x", 4), whole("c", 4)), {}, (whole("o", 4),), out=True)]
    roles = [("x", "user", 4), *([("w", "weight", 4)] if passed else []), ("c", "constant", 4), ("o", "output", 4)]
    constant = (weight * 10).detach() if constant is None else constant(weight)
    made = program(roles, steps, [whole("o", 4)], {"w": weight, "c": constant})
    made = dataclasses.replace(made, prologue=Prologue(prologue, (entry,), ("c", "total"), assumed or {}))
    return buffers.run(made, BuffersConfig("best")), weight, constant, runs


def ready(made, **config):
    return runtime.run(made, compiled(made), RuntimeConfig(**config))


def test_constants_follow_a_change_in_place_and_stay_where_they_are():
    made, weight, constant, runs = frozen()
    run = ready(made)
    address = constant.data_ptr()
    assert run([VECTOR, weight])[0].tolist() == [10, 11, 12, 13] and len(runs) == 0
    with torch.no_grad():
        weight.mul_(2)
    for _ in range(2):
        assert run([VECTOR, weight])[0].tolist() == [20, 21, 22, 23]
    assert len(runs) == 1 and constant.data_ptr() == address and constant.tolist() == [20] * 4


def test_constants_follow_a_weight_that_is_replaced_or_moved():
    made, weight, _, runs = frozen()
    run = ready(made)
    run([VECTOR, weight])
    other = torch.nn.Parameter(torch.full((4,), 3.0))
    assert run([VECTOR, other])[0].tolist() == [30, 31, 32, 33]
    other.data = torch.full((4,), 4.0)
    assert run([VECTOR, other])[0].tolist() == [40, 41, 42, 43]
    assert run([VECTOR, weight])[0].tolist() == [10, 11, 12, 13]
    assert len(runs) == 3


def test_a_weight_that_is_no_input_of_the_program_is_watched_too():
    made, weight, _, _ = frozen(passed=False)
    run = ready(made)
    assert run([VECTOR])[0].tolist() == [10, 11, 12, 13]
    with torch.no_grad():
        weight.fill_(5)
    assert run([VECTOR])[0].tolist() == [50, 51, 52, 53]


def test_never_checked_constants_stay_as_they_were():
    made, weight, _, runs = frozen()
    run = ready(made, check_weights="never")
    with torch.no_grad():
        weight.mul_(2)
    assert run([VECTOR, weight])[0].tolist() == [10, 11, 12, 13] and not runs


@pytest.mark.parametrize("change_in", [torch.no_grad, torch.inference_mode])
def test_constants_made_in_inference_mode_can_be_renewed(change_in):
    def constant(weight):
        with torch.inference_mode():
            return weight * 10

    made, weight, _, _ = frozen(constant=constant)
    run = ready(made)
    with torch.no_grad():
        weight.mul_(2)
    with change_in():
        assert run([VECTOR, weight])[0].tolist() == [20, 21, 22, 23]


def test_an_assumption_that_no_longer_holds_makes_the_program_stale_and_leaves_it_as_it_was():
    made, weight, constant, _ = frozen(assumed={"the total is positive": lambda c: bool(c["total"] > 0)})
    run = ready(made)
    with torch.no_grad():
        weight.mul_(2)
    assert run([VECTOR, weight])[0].tolist() == [20, 21, 22, 23]
    with torch.no_grad():
        weight.neg_()
    for _ in range(2):  # it is stale for every call, not just for the first that noticed
        with pytest.raises(
            StaleProgram, match=r"relied on 'the total is positive', which no longer holds\n.*[Cc]ompile"
        ):
            run([VECTOR, weight])
    assert constant.tolist() == [20] * 4


def test_a_weight_of_another_type_or_shape_is_named():
    made, _, _, _ = frozen()
    run = ready(made)
    for other in (torch.ones(4).half(), torch.ones(5)):
        with pytest.raises(StaleProgram, match=r"weight 'layer\.weight' is now .*made for float32\[4\]"):
            run([VECTOR, torch.nn.Parameter(other)])


def test_a_constant_that_is_memory_of_its_weight():
    """It follows a change in place by itself; the memory of a replaced weight, which may still be in use, is let be."""

    def view(weight):
        return weight.detach().view(4)

    made, weight, _, _ = frozen(constant=view)
    made = dataclasses.replace(
        made,
        prologue=dataclasses.replace(made.prologue, module=lambda w: (w.view(4), w.sum())),
    )
    run = ready(made)
    assert run([VECTOR, weight])[0].tolist() == [1, 2, 3, 4]
    with torch.no_grad():
        weight.mul_(2)
    assert run([VECTOR, weight])[0].tolist() == [2, 3, 4, 5]
    with pytest.raises(StaleProgram, match="constant 'c' is memory of a weight that was replaced"):
        run([VECTOR, torch.nn.Parameter(torch.ones(4))])
    assert weight.tolist() == [2] * 4


def test_weights_that_steps_read_are_bound_again_where_they_moved():
    """w is read by a kernel and, transposed, by an operator; no prologue."""
    steps = [
        launch(scale_kernel(4, 2.0), "w", "o"),
        Extern(aten.add.out, (whole("x", 2, 2), TensorRef("w", (2, 2), (1, 2))), {}, (whole("p", 2, 2),), out=True),
    ]
    roles = [("x", "user", 4), ("w", "weight", 4), ("o", "output", 4), ("p", "output", 4)]
    made = buffers.run(program(roles, steps, [whole("o", 4), whole("p", 2, 2)], {"w": VECTOR}), BuffersConfig("best"))
    double = compiled(made)
    run = runtime.run(made, double, RuntimeConfig())
    weight = torch.nn.Parameter(VECTOR.clone())
    for _ in range(2):
        o, p = run([torch.zeros(4), weight])
        assert o.tolist() == [0, 2, 4, 6] and p.tolist() == [[0, 2], [1, 3]]
    (bound,) = double.of(scale_kernel(4, 2.0)).bound
    assert bound.rebound.count(0) == 1
    weight.data = VECTOR + 1
    o, p = run([torch.zeros(4), weight])
    assert o.tolist() == [2, 4, 6, 8] and p.tolist() == [[1, 3], [2, 4]]
    with pytest.raises(StaleProgram, match=r"weight 'w' is now float64\[4\]"):
        run([torch.zeros(4), weight.double()])


def test_weights_whose_changes_torch_does_not_count_are_told():
    made, _, _, _ = frozen()
    with torch.inference_mode():
        untracked = torch.ones(4)
    entry = GraphInput("w", "weight", "layer.weight", untracked)
    made = dataclasses.replace(made, prologue=dataclasses.replace(made.prologue, weights=(entry,)))
    run = ready(made)
    assert run.notes == ["changes in place of 1 weights made in inference mode ('layer.weight') are not noticed"]
    assert run([VECTOR, untracked])[0].tolist() == [10, 11, 12, 13]


def test_a_prologue_without_its_weight_is_refused():
    made, _, _, _ = frozen()
    entry = GraphInput("w", "weight", "layer.weight", None)
    made = dataclasses.replace(made, prologue=dataclasses.replace(made.prologue, weights=(entry,)))
    with pytest.raises(IRError, match="weight 'w' of the prologue has no tensor"):
        ready(made)


def test_a_constant_packed_by_onednn_is_used_and_renewed():
    pack, linear = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
    weight = torch.nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))
    packed = pack(weight.detach(), 4)
    arguments = (whole("x", 4, 8), TensorRef("c", (8, 8), ()), None, "none", [], "")
    steps = [Extern(linear.default, arguments, {}, (whole("o", 4, 8),))]
    made = program(
        [("x", "user", 32), ("c", "constant", 64), ("o", "extern", 32)], steps, [whole("o", 4, 8)], {"c": packed}
    )
    facts = {
        "geometry": {"x": dataclasses.replace(made.geometry["x"], shape=(4, 8), strides=(8, 1))},
        "prologue": Prologue(lambda w: (pack(w, 4),), (GraphInput("w", "weight", "w", weight),), ("c",)),
    }
    run = ready(buffers.run(dataclasses.replace(made, **facts), BuffersConfig("best")))
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run([x])[0], x @ weight.detach().T)
    with torch.no_grad():
        weight.mul_(3)
    torch.testing.assert_close(run([x])[0], x @ weight.detach().T)
