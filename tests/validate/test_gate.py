"""The gate: what passes and what must not, with errors made by hand."""

import json
import re
from functools import partial

import pytest
import torch
from torch import nn

from stages.ir.errors import ConfigError
from stages.validate import Floor, ValidateConfig, float64_reference, run

CPU = torch.device("cpu")
TIGHT = ValidateConfig(floors={"fp32": Floor(0.0, 0.0), "bf16": Floor(4e-3, 8e-3)})


def sets(*shapes, count=2):
    return [
        (tuple(torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for shape in shapes), {})
        for seed in range(count)
    ]


def validate(candidate, eager, inputs, config=TIGHT, precision="fp32", state=None, model=None):
    reference = partial(float64_reference, model or eager, device=CPU)
    return run(candidate, eager, reference, inputs, config, precision, state)


def eager_with_error(x):
    """Twice x in float64; off by a relative 1e-4 in float32."""
    return x * 2 if x.dtype is torch.float64 else x * 2 * (1 + 1e-4)


def test_the_same_function_passes():
    result = validate(torch.sin, torch.sin, sets((8, 8)))
    assert result.passed and result.reasons == () and result.error_ratio == 1.0
    assert [check.input_set for check in result.checks] == [0, 1]


@pytest.mark.parametrize(("times", "passes"), [(1.0, True), (1.9, True), (3.0, False)])
def test_error_is_measured_in_multiples_of_eagers(times, passes):
    result = validate(lambda x: x * 2 * (1 + times * 1e-4), eager_with_error, sets((64,)))
    assert result.passed is passes
    assert result.error_ratio == pytest.approx(times, rel=0.01)
    if not passes:
        assert "relative error 0.0003 exceeds 0.0002, which is 2 x eager's 0.0001" in result.reasons[0]


def test_one_bad_element_among_many_fails_by_its_peak():
    def candidate(x):
        out = eager_with_error(x)
        out[17] += 0.01 * out.abs().max()
        return out

    result = validate(candidate, eager_with_error, sets((1_000_000,), count=1))
    assert result.checks[0].errors.relative_error < 2e-4
    assert "peak error" in result.reasons[0]


def test_the_floor_allows_what_eager_has_by_luck():
    exact, off = (lambda x: x.clone()), (lambda x: x * (1 + 2**-20))
    assert not validate(off, exact, sets((16,))).passed
    lenient = ValidateConfig(floors={"fp32": Floor(2e-6, 4e-6)})
    assert validate(off, exact, sets((16,)), lenient).passed


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (lambda x: torch.where(x > 0, x, torch.nan), "NaN at"),
        (lambda x: torch.where(x > 0, x, torch.inf), r"\+inf at"),
        (lambda x: x.double(), "it is float64, eager gives float32"),
        (lambda x: x.clone()[None], r"its shape is \[1, 4, 6\], eager's is \[4, 6\]"),
        (lambda x: x.t().contiguous().t(), r"its strides are \[1, 4\], eager's are \[6, 1\]"),
        (lambda x: [x.clone()], "output is a list, eager gives a torch.Tensor"),
        (lambda x: x, "shares memory with input 0, eager's does not"),
        (lambda x: x.add_(0.0).neg_().neg_().clone() + x.mul_(2).sub_(x), "input 0 was changed by the call"),
        (lambda x: x.nope, "the compiled model raised AttributeError"),
    ],
)
def test_what_differs_from_eager_fails(candidate, reason):
    result = validate(candidate, torch.clone, sets((4, 6)))
    assert not result.passed
    assert any(re.search(reason, line) for line in result.reasons), result.reasons


def test_nan_and_inf_where_eager_has_them_pass():
    function = lambda x: torch.log(x) / (x > 1)  # noqa: E731
    assert not torch.isfinite(function(sets((64,))[0][0][0])).all()
    assert validate(function, function, sets((64,))).passed


def test_aliases_between_outputs_must_be_eagers():
    def views(x):
        y = x + 1
        return y, y[1:]

    result = validate(lambda x: (x + 1, (x + 1)[1:]), views, sets((5,)))
    assert "output[0] does not share memory with output[1], eager's does" in result.reasons[0]
    assert validate(views, views, sets((5,))).passed
    relaxed = ValidateConfig(floors=TIGHT.floors, aliases=False)
    assert validate(lambda x: (x + 1, (x + 1)[1:]), views, sets((5,)), relaxed).passed


def test_disjoint_views_of_one_storage_are_no_aliases():
    chunks = lambda x: (x + 1).chunk(2)  # noqa: E731
    assert validate(lambda x: tuple(part.clone() for part in chunks(x)), chunks, sets((6,))).passed


def test_input_mutation_must_be_eagers_in_value_too():
    def eager(x):
        return x.add_(1).sum()

    assert validate(eager, eager, sets((8,))).passed
    unchanged = validate(lambda x: (x + 1).sum(), eager, sets((8,)))
    assert "input 0 was left alone, eager changes it" in unchanged.reasons[0]
    wrong = validate(lambda x: (x.add_(2) - 1).sum(), eager, sets((8,)))
    assert any("input 0 after the call: relative error" in reason for reason in wrong.reasons)


def test_state_must_end_as_eagers_and_is_put_back():
    model = nn.BatchNorm1d(3).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = dict(model.named_buffers())
    frozen = nn.functional.batch_norm
    good = validate(model, model, sets((5, 3)), state=state)
    assert good.passed and "state running_mean after the call" in {check.output for check in good.checks}
    bad = validate(
        lambda x: frozen(x, None, None, training=True) * model.weight + model.bias, model, sets((5, 3)), state=state
    )
    assert "state num_batches_tracked was left alone, eager changes it" in " ".join(bad.reasons)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_integers_are_equal_except_where_rounding_decides():
    def eager(x):
        # In float32, 1 + 1e-9 is 1: eager picks the first of two equal values, float64 the second.
        return torch.stack([x[0] * 0 + 1, x[0] * 0 + 1 + 1e-9, x[0] * 0]).argmax(0), (x > 0)

    inputs = sets((2, 4))
    assert validate(lambda x: (torch.ones(4, dtype=torch.int64), x > 0), eager, inputs).passed
    result = validate(lambda x: (eager(x)[0], x > 0.5), eager, inputs)
    assert not result.passed and all("output[1]" in reason for reason in result.reasons)
    assert "elements differ from eager, which agrees with float64 there" in result.reasons[0]


def test_plain_values_are_compared():
    eager = lambda x: {"x": x + 1, "n": 3, "s": "mean", "none": None, "f": 0.5}  # noqa: E731
    assert validate(eager, eager, sets((2,))).passed
    reasons = validate(lambda x: {**eager(x), "n": 4, "s": "sum", "f": 0.6}, eager, sets((2,))).reasons
    assert len([reason for reason in reasons if reason.startswith("input set 0")]) == 4  # f fails by norm and by peak


def test_model_outputs_are_compared_by_field():
    from transformers.modeling_outputs import BaseModelOutput

    eager = lambda x: BaseModelOutput(last_hidden_state=x + 1, hidden_states=(x + 1, x + 2))  # noqa: E731
    result = validate(eager, eager, sets((2,)))
    assert result.passed
    assert {check.output for check in result.checks} >= {"output['last_hidden_state']", "output['hidden_states'][1]"}
    assert "output is a dict" in validate(lambda x: dict(eager(x)), eager, sets((2,))).reasons[0]


def test_random_operators_get_the_same_seed():
    assert validate(nn.Dropout(0.5), nn.Dropout(0.5), sets((64,)), model=nn.Dropout(0.5)).passed


def test_the_result_is_json():
    data = json.loads(json.dumps(validate(torch.sin, torch.sin, sets((3,))).to_dict(), allow_nan=False))
    assert data["passed"] is True and data["checks"][0]["errors"]["relative_error"] < 1e-6


def test_config_errors_name_the_key():
    with pytest.raises(ConfigError, match=r"validate\.factor: 0\.5"):
        ValidateConfig(factor=0.5)
    with pytest.raises(ConfigError, match=r"validate\.floors\.fp8"):
        validate(torch.sin, torch.sin, sets((3,)), precision="fp8")
