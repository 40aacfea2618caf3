"""Post-ops of oneDNN's prepacked operations, against eager."""

import pytest
import torch
from torch.nn import functional as F

from stages.fusion.library import ACTIVATIONS, NAN_NOTE, PostOp
from tests.fusion.helpers import check, fused

mkldnn = torch.ops.mkldnn

# Activation in eager, and what oneDNN is told.
ACTIVATION_CASES = {
    "relu": (F.relu, "relu", []),
    "gelu": (F.gelu, "gelu", []),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu", []),
    "silu": (F.silu, "swish", []),
    "hardswish": (F.hardswish, "hardswish", []),
    "hardsigmoid": (F.hardsigmoid, "hardsigmoid", []),
    "sigmoid": (torch.sigmoid, "sigmoid", []),
    "tanh": (torch.tanh, "tanh", []),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), "leaky_relu", [0.2]),
    "relu6": (F.relu6, "hardtanh", [0.0, 6.0]),
    "clamp": (lambda x: torch.clamp(x, -0.5, 0.25), "hardtanh", [-0.5, 0.25]),
}
NAN_LOSING = {name for name, (_, attr, _) in ACTIVATION_CASES.items() if attr in ("relu", "hardtanh", "hardsigmoid")}


def linear(x, weight, bias):
    return mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def convolution(x, weight, bias):
    return mkldnn._convolution_pointwise(x, weight, bias, [1, 1], [1, 1], [1, 1], 1, "none", [], "")


def linear_inputs(*batch):
    weight = mkldnn._reorder_linear_weight(torch.randn(7, 5))
    return torch.randn(*batch, 5), weight, torch.randn(7)


def convolution_inputs():
    weight = mkldnn._reorder_convolution_weight(torch.randn(8, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1, [2, 3, 6, 6])
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    return x, weight, torch.randn(8)


def residual():
    return torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)


def targets(program):
    return [step.target for step in program.externs]


@pytest.mark.parametrize("name", ACTIVATION_CASES)
def test_an_activation_becomes_a_post_op_of_linear(name):
    activation, attr, scalars = ACTIVATION_CASES[name]
    function = lambda x, w, b: activation(linear(x, w, b))  # noqa: E731
    program = check(function, *linear_inputs(4), nan_losing_epilogues=name in NAN_LOSING)
    (step,) = program.steps
    assert step.args[3:5] == (attr, scalars)
    assert program.decisions[0].rule == "linear_unary" and program.decisions[0].bytes_saved == 2 * 4 * 7 * 4
    assert (NAN_NOTE in program.notes) == (name in NAN_LOSING)


@pytest.mark.parametrize("name", ACTIVATION_CASES)
def test_an_activation_becomes_a_post_op_of_convolution(name):
    activation, attr, scalars = ACTIVATION_CASES[name]
    function = lambda x, w, b: activation(convolution(x, w, b))  # noqa: E731
    program = check(function, *convolution_inputs(), nan_losing_epilogues=name in NAN_LOSING)
    (step,) = program.steps
    assert step.args[7:9] == (attr, scalars)


# oneDNN's post-ops on NaN and infinities: those that lose a NaN are not used unless asked for.
SPECIAL = {**ACTIVATION_CASES, "leaky_relu without a slope": (lambda x: F.leaky_relu(x, 0.0), "leaky_relu", [0.0])}


@pytest.mark.parametrize("name", SPECIAL)
def test_nan_and_infinities_pass_an_activation(name):
    activation, attr, scalars = SPECIAL[name]
    x = torch.tensor([float("nan"), float("inf"), 1.0, -1.0, 0.0])[:, None]
    weight = mkldnn._reorder_linear_weight(torch.ones(7, 1))
    program = check(lambda x, w: activation(mkldnn._linear_pointwise(x, w, None, "none", [], "")), x, weight)
    assert len(program.launches) == PostOp(attr, tuple(scalars)).loses_nan


@pytest.mark.parametrize("residual", [False, True])
def test_a_nan_passes_relu_after_a_convolution(residual):
    def function(x, w, b, y):
        made = convolution(x, w, b)
        return F.relu(made + y if residual else made)

    x, weight, bias = convolution_inputs()
    x[0, 0, 2, 2] = float("nan")
    y = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    assert len(check(function, x, weight, bias, y).launches) == 1


def test_every_activation_of_the_table_is_tested():
    assert len(ACTIVATIONS) == len(ACTIVATION_CASES) - 1  # gelu is there in both forms


def test_a_reshape_between_is_looked_through():
    function = lambda x, w, b: F.gelu(linear(x, w, b).view(2, 3, 7)) * 2  # noqa: E731
    program = check(function, *linear_inputs(6))
    assert targets(program)[0] is mkldnn._linear_pointwise.default and program.externs[0].args[3] == "gelu"
    assert [launch.kernel.name for launch in program.launches] == ["mul_0"]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_residual_becomes_a_post_op(swapped):
    def function(x, w, b, y):
        made = linear(x, w, b).view(2, 3, 7)
        return y.sin() + made if swapped else made + y.sin()

    program = check(function, *linear_inputs(6), torch.randn(2, 3, 7))
    assert targets(program)[-1] is mkldnn._linear_pointwise.binary
    assert len(program.launches) == 1


def test_the_sum_of_two_linears_is_one_post_op():
    x, w, b = linear_inputs(4)
    program = check(lambda x, w, b, y, v, c: linear(x, w, b) + linear(y, v, c), x, w, b, *linear_inputs(4))
    assert targets(program) == [mkldnn._linear_pointwise.default, mkldnn._linear_pointwise.binary]


@pytest.mark.parametrize("relu", [False, True])
def test_convolution_with_residual(relu):
    def function(x, w, b, y):
        made = convolution(x, w, b) + y
        return F.relu(made) if relu else made

    program = check(function, *convolution_inputs(), residual(), nan_losing_epilogues=True)
    (step,) = program.steps
    assert step.target is mkldnn._convolution_pointwise.binary
    assert step.args[8] == "add" and step.args[10] == ("relu" if relu else None)
    assert step.label.count(",") == 1 + relu
    only_add = check(function, *convolution_inputs(), residual(), library_epilogues=["convolution_add"])
    assert len(only_add.launches) == relu


REFUSED = {
    "scaled": lambda x, w, b, y: torch.add(linear(x, w, b), y, alpha=2),
    "broadcast": lambda x, w, b, y: linear(x, w, b) + y[0],
    "doubled": lambda x, w, b, y: (lambda h: h + h)(linear(x, w, b)) * y,
    "read twice": lambda x, w, b, y: (lambda h: (F.gelu(h), h * y))(linear(x, w, b)),
    "returned": lambda x, w, b, y: (lambda h: (F.gelu(h), h))(linear(x, w, b)),
    "another type": lambda x, w, b, y: linear(x, w, b) + y.double(),
    "other layout": lambda x, w, b, y: linear(x, w, b) + (y * 2).t().contiguous().t(),
    "half a clamp": lambda x, w, b, y: torch.clamp(linear(x, w, b), min=0.5) * y,
    "read by a product": lambda x, w, b, y: linear(x, w, b) @ y.t(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_does_not_compute_is_left(name):
    program = check(REFUSED[name], *linear_inputs(4), torch.randn(4, 7))
    assert program.externs[0].target is mkldnn._linear_pointwise.default
    assert program.externs[0].args[3] == "none"


def test_nothing_is_absorbed_without_its_rule():
    inputs = linear_inputs(4)
    function = lambda x, w, b: F.gelu(linear(x, w, b))  # noqa: E731
    for changes in ({"library_epilogues": ["linear_add"]}, {"library_epilogues": []}):
        assert len(fused(function, *inputs, **changes).launches) == 1
    assert len(check(function, *inputs, name="none").launches) == 1


def test_bytes_before_are_those_without_post_ops():
    program = check(lambda x, w, b: F.gelu(linear(x, w, b)), *linear_inputs(4))
    # The linear reads 4x5, 7x5 and 7 elements and writes 4x7; gelu reads and writes 4x7.
    assert program.traffic_unfused == (20 + 35 + 7 + 3 * 28) * 4


@pytest.mark.parametrize("joint", [F.gelu, lambda y: y + torch.ones(2, 3, 7)])
def test_views_of_an_absorbed_result_stay_views(joint):
    """A model flattens, multiplies, shapes back, activates, and flattens again: no copy between the two products."""
    second = mkldnn._reorder_linear_weight(torch.randn(4, 7))

    def function(x, weight, bias, other):
        y = joint(linear(x.view(6, 5), weight, bias).view(2, 3, 7))
        return linear(y.view(6, 7), other, None)

    program = check(function, *linear_inputs(2, 3), second)
    assert len(targets(program)) == 2
    assert all("ones" in launch.kernel.name for launch in program.launches)


def test_a_value_with_a_post_op_is_known_by_the_node_it_replaces():
    program = check(lambda x, w, b: F.gelu(linear(x, w, b)), *linear_inputs(4))
    (step,) = program.steps
    assert program.values[step.writes[0]] == "gelu"
