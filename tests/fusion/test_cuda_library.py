"""Epilogues of cuDNN and cuBLASLt: what is left to them, by references of their operators that run on a CPU; and, on a
GPU, that the operators themselves compute what eager computes."""

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from stages.fusion.config import LIBRARY_EPILOGUES
from stages.fusion.library import absorb
from tests.fusion.helpers import graph_of

aten = torch.ops.aten
EPILOGUES = [name for name in LIBRARY_EPILOGUES if name != "cublaslt_gelu"]


def convolution_relu(x, weight, bias, stride, padding, dilation, groups):
    return F.relu(F.conv2d(x, weight, bias, stride, padding, dilation, groups))


def convolution_add_relu(x, weight, z, alpha, bias, stride, padding, dilation, groups):
    return F.relu(F.conv2d(x, weight, bias, stride, padding, dilation, groups) + alpha * z)


def addmm_activation(bias, rows, matrix, use_gelu=False):
    y = torch.addmm(bias, rows, matrix)
    return F.gelu(y, approximate="tanh") if use_gelu else F.relu(y)


REFERENCES = {
    aten._addmm_activation.default: addmm_activation,
    aten.cudnn_convolution_relu.default: convolution_relu,
    aten.cudnn_convolution_add_relu.default: convolution_add_relu,
}


class Machine(fx.Interpreter):
    def call_function(self, target, args, kwargs):
        return super().call_function(REFERENCES.get(target, target), args, kwargs)


def absorbed(function, *inputs, names=EPILOGUES):
    """The graph with epilogues, checked against eager, and the operators it calls."""
    graph = graph_of(function, *inputs)
    made = absorb(graph.module, names, torch.device("cuda"))
    expected = function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for mine, eager in zip(Machine(fx.GraphModule({}, made.nodes)).run(*inputs), expected, strict=True):
        assert mine.stride() == eager.stride()
        torch.testing.assert_close(mine, eager)
    return made, [node.target for node in made.nodes.nodes if node.op == "call_function"]


def image(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


def operands():
    """Two images of 4 and 6 channels, weights 4 -> 6 with 3x3 and 1x1 kernels, and two biases."""
    return image(2, 4, 5, 5), image(2, 6, 5, 5), torch.randn(6, 4, 3, 3), torch.randn(6, 4, 1, 1), *torch.randn(2, 6)


def conv(x, w, bias=None):
    return F.conv2d(x, w, bias, padding=w.shape[-1] // 2)


def column(bias):
    return bias.view(1, -1, 1, 1)


RELU = {
    "bias of the convolution": lambda x, z, w, v, b, c: F.relu(conv(x, w, b)),
    "bias added": lambda x, z, w, v, b, c: F.relu(conv(x, w) + column(b)),
    "bias added from the left": lambda x, z, w, v, b, c: F.relu(column(b) + conv(x, w)),
    "read twice": lambda x, z, w, v, b, c: (lambda y: (y * 2, y + 1))(F.relu(conv(x, w, b))),
}
ADD_RELU = {
    "residual": lambda x, z, w, v, b, c: F.relu(conv(x, w, b) + z),
    "residual first": lambda x, z, w, v, b, c: F.relu(z + (conv(x, w) + column(b))),
    "bias last": lambda x, z, w, v, b, c: F.relu((conv(x, w) + z) + column(b)),
    "the residual's bias": lambda x, z, w, v, b, c: F.relu(conv(x, w) + (z.sin() + column(b))),
}
NEITHER = {
    "no bias": lambda x, z, w, v, b, c: F.relu(conv(x, w)),
    "read twice": lambda x, z, w, v, b, c: (lambda y: (F.relu(y), y))(conv(x, w, b)),
    "scaled": lambda x, z, w, v, b, c: F.relu(torch.add(conv(x, w, b), z, alpha=2)),
    "another activation": lambda x, z, w, v, b, c: F.silu(conv(x, w, b)),
    "two residuals": lambda x, z, w, v, b, c: F.relu(conv(x, w, b) + z + z.sin()),
    "a residual to broadcast": lambda x, z, w, v, b, c: F.relu(conv(x, w, b) + z[:1]),
    "a residual of other layout": lambda x, z, w, v, b, c: F.relu(conv(x, w, b) + z.contiguous()),
    "bias along a row": lambda x, z, w, v, b, c: F.relu(conv(x, w) + b[:5]),
    "dilated": lambda x, z, w, v, b, c: F.relu(F.conv2d(x, w, b, dilation=2)),
    "grouped": lambda x, z, w, v, b, c: F.relu(F.conv2d(x, w[:, :2], b, groups=2)),
}


@pytest.mark.parametrize("name", RELU)
def test_relu_is_left_to_cudnn(name):
    made, targets = absorbed(RELU[name], *operands())
    assert aten.cudnn_convolution_relu.default in targets
    assert aten.relu.default not in targets and aten.convolution.default not in targets
    ((_, gone),) = made.absorbed.items()
    assert gone[-1].name == "relu" and made.decisions[0].rule == "cudnn_relu"


@pytest.mark.parametrize("name", ADD_RELU)
def test_a_residual_is_left_to_cudnn(name):
    made, targets = absorbed(ADD_RELU[name], *operands())
    assert aten.cudnn_convolution_add_relu.default in targets
    assert aten.relu.default not in targets and aten.add.Tensor not in targets
    assert made.decisions[0].rule == "cudnn_add_relu"


def test_two_convolutions_and_their_bias_are_two_calls():
    function = lambda x, z, w, v, b, c: F.relu(conv(x, w) + (conv(x, v) + column(b)))  # noqa: E731
    _, targets = absorbed(function, *operands())
    compute = [target for target in targets if target is not aten.view.default]
    assert compute == [aten.convolution.default, aten.cudnn_convolution_add_relu.default]


@pytest.mark.parametrize("name", NEITHER)
def test_what_cudnn_does_not_compute_is_left(name):
    _, targets = absorbed(NEITHER[name], *operands())
    assert not set(targets) & set(REFERENCES)


@pytest.mark.parametrize("name, rule", [("residual", "cudnn_add_relu"), ("bias of the convolution", "cudnn_relu")])
def test_nothing_is_left_to_cudnn_without_its_rule(name, rule):
    names = [each for each in EPILOGUES if each != rule]
    _, targets = absorbed((RELU | ADD_RELU)[name], *operands(), names=names)
    assert not set(targets) & set(REFERENCES)


def test_a_type_that_cudnn_does_not_fuse_is_left():
    _, targets = absorbed(RELU["bias added"], *(tensor.double() for tensor in operands()))
    assert not set(targets) & set(REFERENCES)


def product_operands(dtype=torch.bfloat16):
    return torch.randn(6, 5, dtype=dtype), torch.randn(5, 8, dtype=dtype), torch.randn(8, dtype=dtype)


PRODUCTS = {
    "relu": (lambda x, w, b: F.relu(torch.addmm(b, x, w)), False),
    "gelu": (lambda x, w, b: F.gelu(torch.addmm(b, x, w), approximate="tanh"), True),
    "through a reshape": (lambda x, w, b: F.relu(torch.addmm(b, x, w).view(2, 3, 8)) + 1, False),
}


HALF, WITH_SINGLE = (torch.bfloat16, torch.float16), (torch.bfloat16, torch.float16, torch.float32)
CASES = [(name, dtype) for name, (_, gelu) in PRODUCTS.items() for dtype in (HALF if gelu else WITH_SINGLE)]


@pytest.mark.parametrize("name, dtype", CASES)
def test_activations_of_products_are_left_to_cublaslt(name, dtype):
    function, use_gelu = PRODUCTS[name]
    made, targets = absorbed(function, *product_operands(dtype))
    assert targets[0] is aten._addmm_activation.default
    assert not set(targets) & {aten.relu.default, aten.gelu.default, aten.addmm.default}
    (node,) = made.absorbed
    assert node.kwargs["use_gelu"] is use_gelu


@pytest.mark.parametrize("approximate", ["tanh", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gelus_of_wide_types_are_not_left_to_cublaslt_whose_tanh_is_approximate(dtype, approximate):
    function = lambda x, w, b: F.gelu(torch.addmm(b, x, w), approximate=approximate)  # noqa: E731
    made, targets = absorbed(function, *product_operands(dtype), names=LIBRARY_EPILOGUES)
    assert targets == [aten.addmm.default, aten.gelu.default] and not made.decisions


def test_the_exact_gelu_is_computed_as_the_tanh_form_only_if_asked_for():
    function = lambda x, w, b: F.gelu(torch.addmm(b, x, w))  # noqa: E731
    _, targets = absorbed(function, *product_operands())
    assert targets == [aten.addmm.default, aten.gelu.default]
    graph = graph_of(function, *product_operands())
    made = absorb(graph.module, ["cublaslt_gelu"], torch.device("cuda"))
    assert [n.target for n in made.nodes.nodes if n.op == "call_function"] == [aten._addmm_activation.default]


UNFIT_PRODUCTS = {
    "scaled": lambda x, w, b: F.relu(torch.addmm(b, x, w, beta=2)),
    "a bias for each element": lambda x, w, b: F.relu(torch.addmm(b.expand(6, 8).contiguous(), x, w)),
    "read twice": lambda x, w, b: (lambda y: (F.relu(y), y))(torch.addmm(b, x, w)),
    "another activation": lambda x, w, b: torch.tanh(torch.addmm(b, x, w)),
}


@pytest.mark.parametrize("name", UNFIT_PRODUCTS)
def test_other_products_are_left(name):
    _, targets = absorbed(UNFIT_PRODUCTS[name], *product_operands())
    assert aten._addmm_activation.default not in targets


def on_gpu(dtype, *tensors):
    return [tensor.to("cuda", dtype) for tensor in tensors]


TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels, results, stride", [(16, 24, 1), (16, 24, 2), (3, 8, 1), (5, 7, 1)])
def test_cudnn_computes_what_eager_does(dtype, layout, channels, results, stride, no_tf32):
    size = -(-9 // stride)
    weight = torch.randn(results, channels, 3, 3) / (3 * channels**0.5)
    x, z, w, b = on_gpu(
        dtype, torch.randn(2, channels, 9, 9), torch.randn(2, results, size, size), weight, torch.randn(results)
    )
    x, z, w = (tensor.to(memory_format=layout) for tensor in (x, z, w))
    window = ([stride, stride], [1, 1], [1, 1], 1)
    wide = F.conv2d(x.double(), w.double(), b.double(), stride, 1)
    one = aten.cudnn_convolution_relu(x, w, b, *window)
    two = aten.cudnn_convolution_add_relu(x, w, z, 1.0, b, *window)
    assert one.stride() == two.stride() == z.stride()
    torch.testing.assert_close(one.double(), wide.relu(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    torch.testing.assert_close(two.double(), (wide + z).relu(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_cudnn_and_cublaslt_keep_nan_and_infinity_as_eager_does(dtype):
    x, w, b = on_gpu(dtype, image(1, 16, 8, 8), image(16, 16, 1, 1), torch.randn(16))
    x[0, 0, 0, 0], x[0, 1, 1, 1], x[0, 1, 2, 2] = float("nan"), float("inf"), float("-inf")
    expected = F.relu(F.conv2d(x, w, b))
    window = ([1, 1], [0, 0], [1, 1], 1)
    for mine in (
        aten.cudnn_convolution_relu(x, w, b, *window),
        aten.cudnn_convolution_add_relu(x, w, torch.zeros_like(expected), 1.0, b, *window),
    ):
        assert torch.equal(mine.isnan(), expected.isnan()) and torch.equal(mine.isinf(), expected.isinf())
    rows, matrix = x.permute(0, 2, 3, 1).reshape(64, 16), w.reshape(16, 16).t()
    expected = F.relu(torch.addmm(b, rows, matrix))
    mine = aten._addmm_activation(b, rows, matrix)
    assert torch.equal(mine.isnan(), expected.isnan()) and torch.equal(mine.isinf(), expected.isinf())
    expected = F.gelu(torch.addmm(b, rows, matrix), approximate="tanh")
    mine = aten._addmm_activation(b, rows, matrix, use_gelu=True)
    assert torch.equal(mine.isnan(), expected.isnan())
