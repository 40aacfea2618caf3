"""Convolution nets for CUDA: layouts, biases and stems. Values against eager in float64 on the CPU."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stages.ir.library_flags import float32_products
from stages.rewrite.edit import tensor_of
from tests.graphs import targets
from tests.rewrite.cuda import check, check_changed, rewritten
from tests.rewrite.test_rewrite import Function

aten = torch.ops.aten
torch.manual_seed(0)


def convolutions(graph):
    return [node for node in graph.module.graph.nodes if node.target is aten.convolution.default]


def of(module, *names):
    """The nodes whose operator has one of `names`."""
    return [node for node in module.module.graph.nodes if any(name in str(node.target) for name in names)]


def is_channels_last(node):
    return tensor_of(node).is_contiguous(memory_format=torch.channels_last)


class Block(nn.Module):
    """A residual block that halves the image and changes its width, and one that does not."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one, self.two = nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 12, 1)
        self.short = nn.Conv2d(8, 12, 1, 2)
        self.three = nn.Conv2d(12, 12, 3, padding=1)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        x = F.relu(self.two(F.relu(self.one(x))) + self.short(x))
        y = F.silu(self.three(x)) + x
        return y, y.flatten(1), y.mean((2, 3))


def double(module):
    return module.double().eval()


def test_a_net_runs_channels_last_and_gives_eagers_strides():
    module, x = Block().eval(), torch.randn(2, 3, 16, 16)
    graph = rewritten(module, x, passes=["channels_last", "fold_constants"])
    assert all(is_channels_last(node) for node in convolutions(graph))
    images = of(graph, "relu", "silu", "max_pool", "add")
    assert all(is_channels_last(node) for node in images if tensor_of(node) is not None)
    assert all(graph.input(node.args[1].name).kind == "constant" for node in convolutions(graph))
    # Only the user's image is laid out.
    assert "1 copy of images" in graph.notes[0]
    check(graph, module, x, tolerance=1e-5)
    check_changed(graph, module, x, tolerance=1e-5)


def test_one_copy_serves_all_convolutions_that_read_an_image():
    module = Function(lambda self, x: (self.one(x) + self.two(x), self.two(x)))
    module.one, module.two = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
    graph = rewritten(module, torch.randn(1, 4, 6, 6), passes=["channels_last"])
    sources = {node.args[0] for node in convolutions(graph)}
    assert len(sources) == 1 and is_channels_last(sources.pop())


def test_an_image_that_lies_right_is_not_copied():
    module, x = nn.Conv2d(4, 4, 3), torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    graph = rewritten(module, x, passes=["channels_last"])
    assert convolutions(graph)[0].args[0].op == "placeholder"
    check(graph, module, x, tolerance=1e-5)


@pytest.mark.parametrize("inputs", [torch.randn(2, 4, 9), torch.randn(1, 4, 5, 5, 5), torch.randn(2, 4, 6, 6).double()])
def test_other_convolutions_keep_their_layout(inputs):
    kind = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[inputs.dim()]
    module = kind(4, 4, 3).to(inputs.dtype)
    graph = rewritten(module, inputs, passes=["channels_last"])
    assert graph.notes == [] and targets(graph) == ["aten.convolution.default"]


def test_a_cpu_keeps_what_onednn_chooses():
    from tests.rewrite.test_rewrite import rewritten as on_cpu

    graph = on_cpu(Block().eval(), torch.randn(1, 3, 16, 16), passes=["channels_last", "peel_bias", "space_to_depth"])
    assert graph.notes == []


def test_biases_become_additions_and_two_become_one():
    module, x = double(Block()), torch.randn(2, 3, 16, 16).double()
    graph = rewritten(module, x, passes=["peel_bias", "fold_constants"])
    assert all(node.args[2] is None for node in convolutions(graph))
    biases = [node for node in of(graph, "add.Tensor") if "view" in str(getattr(node.args[1], "target", ""))]
    assert len(convolutions(graph)) == 5 and len(biases) == 4
    check(graph, module, x)
    check_changed(graph, module, x)


def test_joined_biases_are_rounded_once():
    def half(self, x):
        one, two = (F.conv2d(x, c.weight.bfloat16(), c.bias.bfloat16()) for c in (self.one, self.two))
        return one + two

    module = Function(half)
    module.one, module.two = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
    module.one.bias.data.fill_(1 + 2.0**-8)
    module.two.bias.data.fill_(1 + 2.0**-9)
    graph = rewritten(module, torch.randn(1, 4, 3, 3).bfloat16(), passes=["peel_bias", "fold_constants"])
    (total,) = [e.tensor for e in graph.inputs if e.kind == "constant" and e.tensor.shape == (4,)]
    assert torch.equal(total, torch.full((4,), 2 + 2.0**-8 + 2.0**-9).bfloat16())


PATCHES = {
    "patches": (nn.Conv2d(3, 8, 4, 4), (2, 3, 12, 8)),
    "without bias": (nn.Conv2d(3, 8, (2, 4), (2, 4), bias=False), (2, 3, 12, 8)),
    "pixels left over": (nn.Conv2d(3, 8, 4, 4), (2, 3, 14, 11)),
}


@pytest.mark.parametrize("name", PATCHES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_patches_are_a_matrix_product(name, layout):
    module, shape = PATCHES[name]
    module = Function(lambda self, x: (self.conv(x).flatten(2).transpose(1, 2), self.conv(x) * 2))
    module.conv = PATCHES[name][0].double()
    x = torch.randn(shape).double().to(memory_format=layout)
    graph = rewritten(module, x)
    assert not convolutions(graph) and any("mm" in name for name in targets(graph))
    check(graph, module, x)
    check_changed(graph, module, x)


NO_PATCHES = {
    "overlapping": (nn.Conv2d(3, 8, 4, 3), 12),
    "padded": (nn.Conv2d(3, 8, 4, 4, padding=2), 12),
    "grouped": (nn.Conv2d(4, 8, 2, 2, groups=2), 12),
    "dilated": (nn.Conv2d(3, 8, 2, 2, dilation=2), 12),
    "pointwise": (nn.Conv2d(3, 8, 1), 12),
    "transposed": (nn.ConvTranspose2d(3, 8, 2, 2), 6),
}


@pytest.mark.parametrize("name", NO_PATCHES)
def test_other_convolutions_are_no_patches(name):
    module, size = NO_PATCHES[name]
    x = torch.randn(1, module.in_channels, size, size).double()
    graph = rewritten(module.double(), x, passes=["patches_to_linear"])
    assert len(convolutions(graph)) == 1 and not graph.notes
    check(graph, module, x)


STEMS = [
    # channels, kernel, stride, padding, size
    (3, 7, 2, 3, (32, 32)),
    (3, 7, 2, 3, (33, 30)),
    (3, 3, 2, 1, (17, 16)),
    (1, 5, 2, 0, (16, 19)),
    (4, 7, 4, 1, (20, 23)),
    (3, 7, 4, 2, (30, 30)),
    (2, (3, 5), 2, (1, 0), (15, 14)),
    (3, 3, 2, 0, (8, 8)),
]


@pytest.mark.parametrize("channels, kernel, stride, padding, size", STEMS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_stem_reads_blocks_of_pixels(channels, kernel, stride, padding, size, bias):
    module = nn.Conv2d(channels, 6, kernel, stride, padding, bias=bias)
    x = torch.randn(2, channels, *size)
    graph = rewritten(module, x, passes=["space_to_depth", "fold_constants"])
    (node,) = convolutions(graph)
    assert node.args[3] == [1, 1] and tensor_of(node.args[0]).shape[1] % 8 == 0
    assert is_channels_last(node.args[0])
    check(graph, module, x, tolerance=1e-5)
    check_changed(graph, module, x, tolerance=1e-5)


def test_the_stem_of_resnet_is_four_by_four_over_sixteen():
    module = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    graph = rewritten(module, torch.randn(1, 3, 32, 32), passes=["space_to_depth"])
    assert tensor_of(convolutions(graph)[0].args[1]).shape == (64, 16, 4, 4)


NO_STEMS = {
    "many channels": nn.Conv2d(8, 8, 3, 2, 1),
    "dense": nn.Conv2d(3, 8, 3, 1, 1),
    "unequal strides": nn.Conv2d(3, 8, 5, (2, 1)),
    "an odd stride": nn.Conv2d(3, 8, 5, 3),
    "pixels skipped": nn.Conv2d(3, 8, 1, 2),
    "grouped": nn.Conv2d(4, 8, 3, 2, groups=4),
    "dilated": nn.Conv2d(3, 8, 3, 2, dilation=2),
}


@pytest.mark.parametrize("name", NO_STEMS)
def test_other_convolutions_are_no_stems(name):
    module = NO_STEMS[name]
    x = torch.randn(1, module.in_channels, 12, 12)
    graph = rewritten(module, x, passes=["space_to_depth"])
    assert not graph.notes
    check(graph, module, x, tolerance=1e-5)


@pytest.mark.parametrize("allowed", [True, False])
def test_float32_follows_whether_tf32_is_allowed(allowed):
    passes = ["space_to_depth", "channels_last"]
    with float32_products(tf32=allowed):
        graph = rewritten(nn.Conv2d(3, 8, 7, 2, 3), torch.randn(1, 3, 16, 16), passes=passes)
    assert bool(graph.notes) == allowed


POOLS = {
    "of resnet": (dict(kernel_size=3, stride=2, padding=1), 17),
    "plain": (dict(kernel_size=2), 9),
    "rounded up": (dict(kernel_size=3, stride=2, ceil_mode=True), 10),
    "unequal": (dict(kernel_size=(2, 3), stride=(1, 2), padding=(0, 1)), 9),
    "dilated": (dict(kernel_size=2, stride=1, dilation=2), 9),
}


@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_is_a_maximum_of_shifted_images(name):
    options, size = POOLS[name]
    module = Function(lambda self, x: F.max_pool2d(x, **options) + 0)
    x = torch.randn(2, 3, size, size)
    x[0, 0, 3, 3], x[0, 1], x[1, 2, 4, 4] = float("nan"), float("-inf"), float("inf")
    graph = rewritten(module, x)
    assert not of(graph, "max_pool") and "1 max pooling as" in " ".join(graph.notes)
    check(graph, module, x, tolerance=0)


NO_POOLS = {
    "indices": lambda self, x: F.max_pool2d(x, 2, return_indices=True),
    "large windows": lambda self, x: F.max_pool2d(x, 4),
    "whole numbers": lambda self, x: F.max_pool2d(x.to(torch.int32), 2),
}


@pytest.mark.parametrize("name", NO_POOLS)
def test_other_pooling_is_left(name):
    module = Function(NO_POOLS[name])
    graph = rewritten(module, torch.randn(2, 3, 8, 8))
    assert not [note for note in graph.notes if "shifted" in note]


def test_a_whole_net_with_folded_norms():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
            self.block, self.head = Block(), nn.Linear(12, 5)
            self.block.stem = nn.Conv2d(8, 8, 1)
            self.norm.running_mean.normal_()

        def forward(self, x):
            y, _, pooled = self.block(F.relu(self.norm(self.conv(x))))
            return y, self.head(pooled)

    module, x = Net().eval(), torch.randn(2, 3, 32, 32)
    graph = rewritten(module, x)
    assert not of(graph, "batch_norm") and all(is_channels_last(node) for node in convolutions(graph))
    check(graph, module, x, tolerance=1e-5)
    check_changed(graph, module, x, tolerance=1e-5)


class Bottleneck(nn.Module):
    """MobileNet's: a wide 1x1 convolution with an activation, and a narrow one without, which others read."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1)
        self.next = nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, x):
        y = self.narrow(F.hardswish(self.wide(x)))
        return self.next(y) + 1, y + x


def test_the_bias_of_a_pointwise_convolution_that_another_reads_is_added_by_a_product():
    module, x = Bottleneck(), torch.randn(2, 8, 6, 5)
    with float32_products(tf32=True):
        graph = rewritten(module, x)
    assert len(convolutions(graph)) == 2 and targets(graph).count("aten.addmm.default") == 1
    assert targets(graph).count("aten.clone.default") == 1  # of the user's image
    check(graph, module, x, tolerance=1e-5)
    check_changed(graph, module, x, tolerance=1e-5)


def test_a_pointwise_convolution_in_tf32_is_no_product_without_it():
    """torch's default: cuDNN may use TF32, products may not."""
    assert torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    module, x = Bottleneck(), torch.randn(2, 8, 6, 5)
    assert "aten.addmm.default" not in targets(rewritten(module, x))


def pointwise(convolution, between=lambda y: y):
    module = Function(lambda self, x: self.last(between(self.first(x))))
    module.first, module.last = convolution, nn.Conv2d(8, 4, 1, bias=False)
    return module


NO_POINTWISE = {
    "with relu": pointwise(nn.Conv2d(8, 8, 1), F.relu),
    "strided": pointwise(nn.Conv2d(8, 8, 1, 2)),
    "padded": pointwise(nn.Conv2d(8, 8, 1, padding=1)),
    "grouped": pointwise(nn.Conv2d(8, 8, 1, groups=2)),
    "larger": pointwise(nn.Conv2d(8, 8, 3)),
    "without bias": pointwise(nn.Conv2d(8, 8, 1, bias=False)),
}


@pytest.mark.parametrize("name", NO_POINTWISE)
def test_other_convolutions_stay(name):
    module, x = NO_POINTWISE[name], torch.randn(2, 8, 6, 6)
    with float32_products(tf32=True):
        graph = rewritten(module, x)
    assert len(convolutions(graph)) == 2
    check(graph, module, x, tolerance=1e-5)
