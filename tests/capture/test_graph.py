"""What the captured graphs hold: whole operators, no noise, the user's source lines."""

import importlib
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stages.capture import decompositions
from stages.ir.graph import origin_of, readable_path
from tests.capture.helpers import assert_same, captured

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def x(*shape):
    return torch.randn(*(shape or (2, 4, 6, 6)))


def targets(model, *args):
    result = captured(model, *args)
    assert_same(result.call(*args), model(*args))
    (graph,) = result.graphs
    return [node.target for node in graph.module.graph.nodes if node.op == "call_function"]


def packets(model, *args):
    return {target.overloadpacket.__name__ for target in targets(model, *args) if hasattr(target, "overloadpacket")}


def test_names_of_the_tables_exist_and_do_not_meet():
    known = {operator.overloadpacket.__name__ for operator in decompositions.table()}
    for_their_layout = {"native_group_norm", "_native_batch_norm_legit_no_training", "log_sigmoid_forward"}
    for_their_layout |= {name.partition(".")[0] for name in decompositions._BINARY.split()}
    assert not known & set(decompositions.WHOLE) - for_their_layout
    assert all(hasattr(aten, name) for name in decompositions.WHOLE)
    assert all(hasattr(aten, name.partition(".")[0]) for name in decompositions.DECOMPOSED)


WHOLE = {
    "native_layer_norm": lambda value: F.layer_norm(value, (6,)),
    "native_group_norm": lambda value: F.group_norm(value, 2),
    "_softmax": lambda value: F.softmax(value, -1),
    "_log_softmax": lambda value: F.log_softmax(value, -1),
    "gelu": F.gelu,
    "silu": F.silu,
    "mean": lambda value: value.mean((2, 3)),
    "var_mean": lambda value: torch.var_mean(value, 1),
    "_native_batch_norm_legit_no_training": nn.BatchNorm2d(4).eval(),
    "convolution": nn.Conv2d(4, 2, 3),
    "addmm": lambda value: F.linear(value.flatten(0, 2), torch.ones(3, 6), torch.ones(3)),
    "upsample_nearest2d": lambda value: F.interpolate(value, scale_factor=2),
    "max_pool2d_with_indices": lambda value: F.max_pool2d(value, 2),
    "_adaptive_avg_pool2d": lambda value: F.adaptive_avg_pool2d(value, 2),
    "_scaled_dot_product_flash_attention_for_cpu": lambda value: F.scaled_dot_product_attention(value, value, value),
}


@pytest.mark.parametrize("name", WHOLE)
def test_operators_that_stay_whole(name):
    assert name in packets(WHOLE[name], x())


BROKEN_UP = {
    "elu": F.elu,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "softplus": F.softplus,
    "logsumexp": lambda value: value.logsumexp(1),
    "std": lambda value: value.std(1),
    "tril": torch.tril,
    "masked_fill": lambda value: value.masked_fill(value > 0, 1.0),
    "stack": lambda value: torch.stack([value, value]),
    "split": lambda value: [part * 2 for part in value.split([1, 3], 1)],
    "pixel_shuffle": lambda value: F.pixel_shuffle(value, 2),
    "reflection_pad2d": lambda value: F.pad(value, (1, 1, 1, 1), mode="reflect"),
    "cross_entropy": lambda value: F.cross_entropy(value.reshape(-1, 6), torch.zeros(48, dtype=torch.long)),
    "glu": lambda value: F.glu(value, 1),
    "linspace": lambda value: torch.linspace(0, 1, 6) + value,
}


@pytest.mark.parametrize("name", BROKEN_UP)
def test_the_long_tail_is_broken_up(name):
    found = targets(BROKEN_UP[name], x())
    known = decompositions.table()
    assert not [target for target in found if target in known]
    assert {target.namespace for target in found if hasattr(target, "namespace")} == {"aten"}
    assert aten.as_strided.default not in found


def test_nothing_is_left_that_only_costs():
    def model(value):
        copy = value.clone() + 1
        same = copy.detach().view(copy.shape).contiguous()[:]
        unused = same * 3  # noqa: F841
        same.mul_(2).relu_()
        return F.dropout(same, 0.5, training=False).to(torch.float32)

    assert targets(model, x()) == [aten.add.Tensor, aten.mul.Tensor, aten.relu.default]


def test_a_copy_with_another_layout_stays():
    assert targets(lambda value: value.transpose(1, 2).contiguous() + 1, x())[1] == aten.clone.default


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, value):
        for layer in self.layers:
            value = F.gelu(layer(value))
        return value


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, value):
        return self.block(value).softmax(-1)


def test_origins_are_the_users_lines_and_module_paths():
    (graph,) = captured(Outer(), x(3, 4)).graphs
    origins = {node.name: origin_of(node) for node in graph.module.graph.nodes if node.op == "call_function"}
    assert {origin.file for origin in origins.values()} == {__file__}
    lines, first = inspect.getsourcelines(Block.forward)
    line = first + next(number for number, text in enumerate(lines) if "gelu" in text)
    gelu = next(origin for name, origin in origins.items() if name.startswith("gelu"))
    assert (gelu.line, gelu.code, gelu.module) == (line, "value = F.gelu(layer(value))", "block")
    linear = [origin.module for name, origin in origins.items() if name.startswith("addmm")]
    assert linear == ["block.layers.0", "block.layers.1"]


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_origins_in_libraries(library):
    module = importlib.import_module(library)
    if library == "timm":
        model, args = module.create_model("resnet10t").eval(), (x(1, 3, 32, 32),)
    else:
        config = module.ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=16,
            patch_size=8,
        )
        model, args = module.ViTModel(config).eval(), (x(1, 3, 16, 16),)
    (graph,) = captured(model, *args).graphs
    paths = {path for path, _ in model.named_modules()}
    for node in graph.module.graph.nodes:
        if node.op == "call_function":
            origin = origin_of(node)
            assert f"/{library}/" in origin.file and origin.line and origin.code
            assert origin.module in paths


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("L['self']._modules['encoder']._modules['0']._parameters['weight']", "encoder.0.weight"),
        ("L['args'][0]._modules['model']._buffers['mean']", "model.mean"),
        ("L['self'].__dict__['_modules']['block']._parameters['bias']", "block.bias"),
        ("L['kwargs']['input_ids']", "input_ids"),
        ("L['batch']['ids']", "batch.ids"),
        ("L['pair'][1]", "pair.1"),
        ("G['table']", "table"),
    ],
)
def test_readable_paths(source, path):
    assert readable_path(source, of_model=False) == path
