"""What goes in and out of a flat call: containers, scalars, objects, and which tensor is which."""

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from stages.capture import CaptureConfig, FlatCaller, run
from tests.capture.helpers import captured, check

Pair = namedtuple("Pair", "left right")


@dataclass
class Batch:
    ids: torch.Tensor
    scale: float
    mask: torch.Tensor | None = None


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def x(*shape):
    return torch.randn(*(shape or (3, 4)))


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, value, scale=2.0, mask=None, *, mode="full"):
        value = self.linear(value) * scale
        if mask is not None:
            value = value * mask
        return value if mode == "full" else value.sum()


def test_scalars_none_and_keywords():
    check(Linear(), x())
    check(Linear(), x(), 3.5, None, mode="sum")
    check(Linear(), x(), mask=x(4), scale=1)


def test_nested_containers_go_in_and_fresh_ones_come_out():
    def model(batch, pair, *, extra):
        total = batch.ids * batch.scale + pair.left["a"][0] + pair.right[1]
        return {
            "total": total,
            "list": [total.sum(), (None, 1, "text")],
            3: Pair(total, extra["b"]),
            "batch": batch.mask,
        }

    result = check(
        model, Batch(x(), 2.0, x()), Pair({"a": [x()]}, (1, x())), extra=OrderedDict(b=torch.arange(3), c=None)
    )
    batch = Batch(x(), 2.0, x())
    rest = (Pair({"a": [x()]}, (1, x())),), {"extra": OrderedDict(b=torch.arange(3), c=None)}
    first, second = (result.call(batch, *rest[0], **rest[1]) for _ in range(2))
    assert first is not second and first["list"] is not second["list"]
    assert first["batch"] is batch.mask


def test_dataclass_output_and_other_mappings():
    def model(value):
        counted = defaultdict(list)
        counted["key"] = [value + 1]
        return Batch(value * 2, 0.5), OrderedDict(first=value - 1), counted

    check(model, x())


def test_named_results_of_torch():
    check(lambda value: torch.max(value, dim=1), x())
    check(lambda value: (value.sort(dim=0), value.shape, value.dtype, value.device), x())


def test_an_output_that_is_an_input_a_weight_or_another_output():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(x(4))
            self.unused = nn.Parameter(x(2))
            self.register_buffer("running", x(4))

        def forward(self, value, other):
            total = value + self.weight
            return total, value, other, self.weight, self.running, self.unused, total, [total]

    model = Model()
    value, other = x(), x(1)
    check(model, value, other)
    returned = captured(model, value, other).call(value, other)
    assert returned[1] is value and returned[3] is model.weight and returned[6] is returned[0]


def test_one_tensor_given_twice():
    result = check(lambda left, right: (left + right, left * 2), *([x()] * 2))
    with pytest.raises(Exception, match="one tensor"):
        result.call(x(), x())


def test_views_and_aliases_among_outputs():
    check(lambda value: (value.t(), value[1:], value.view(-1)), x())

    def model(value):
        total = value * 2
        return total, total.t(), total[0], total.detach(), total.clone()

    check(model, x())


def test_copies_that_a_caller_can_tell_apart_stay():
    check(lambda value: (value.clone(), torch.tensor([1.0, 2.0]), value.contiguous()), x())
    check(lambda value: (value.t().contiguous(), value.to(torch.float64), value.to(torch.float32, copy=True)), x())


def test_literals_are_constants_inside_the_graph():
    result = check(lambda value: value + torch.tensor([1.0, 2.0, 3.0, 4.0]), x())
    (constant,) = [entry for entry in result.graphs[0].inputs if entry.kind == "constant"]
    assert constant.tensor.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_no_tensor_goes_in():
    check(lambda count: torch.arange(count) * 2, 5)


def test_model_output_of_hugging_face():
    import transformers

    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=30
    )
    model = transformers.BertModel(config).eval()
    ids = torch.randint(0, 30, (2, 8), generator=torch.Generator().manual_seed(0))
    result = check(model, input_ids=ids, attention_mask=torch.ones_like(ids))
    sources = {entry.source: entry for entry in result.graphs[0].inputs}
    weight = sources["encoder.layer.0.attention.self.query.weight"]
    assert weight.kind == "weight" and weight.tensor is model.encoder.layer[0].attention.self.query.weight
    assert sources["input_ids"].kind == "user"


def test_key_value_cache_among_the_outputs():
    import transformers

    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=30, bos_token_id=0, eos_token_id=0)
    ).eval()
    check(model, input_ids=torch.arange(6)[None])


def test_what_cannot_be_taken_apart_goes_through_dynamo():
    class Holder:
        def __init__(self, value):
            self.value = value

    result = check(lambda holder: holder.value * 2, Holder(x()), flat=False)
    assert "Holder" in result.notes[0]


def test_plain_functions_with_modules_in_closures_globals_and_partials():
    inner = Linear()
    check(lambda value: torch.relu(inner(value)), x())
    check(inner.forward, x())
    result = captured(lambda value: inner(value) + 1, x())
    assert {entry.source.rpartition(".")[2] for entry in result.graphs[0].inputs} == {"weight", "bias", "value"}


def test_inference_mode():
    with torch.inference_mode():
        check(Linear(), x())


def test_a_model_without_tensor_operations_runs_in_eager():
    result = run(lambda value: (value, 3), (x(),), {}, CaptureConfig())
    value = x()
    assert result.graphs == [] and result.call(value)[0] is value and "eager" in result.notes[-1]


def test_autocast_context_is_that_of_the_capture():
    model, value = Linear(), x()
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(value)
    result = run(model, (value,), {}, CaptureConfig(), lambda: torch.autocast("cpu", torch.bfloat16))
    assert isinstance(result.call, FlatCaller)
    for ours in (result.call(value),):
        assert ours.dtype == expected.dtype
        torch.testing.assert_close(ours, expected)
    plain = captured(model, value)
    with torch.autocast("cpu", torch.bfloat16):
        assert plain.call(value).dtype is torch.float32
