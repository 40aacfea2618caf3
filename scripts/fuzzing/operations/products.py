"""Matrix products and small convolutions, which run as library calls between the kernels."""

from __future__ import annotations

from torch import Tensor

from scripts.fuzzing.case import Step
from scripts.fuzzing.draw import Draw
from scripts.fuzzing.operations.registry import proposes


@proposes(4)
def product(draw: Draw) -> Step:
    first = draw.value(lambda tensor: tensor.is_floating_point() and tensor.ndim >= 1)
    left = draw[first]

    def multiplies(right: Tensor) -> bool:
        return right.dtype is left.dtype and right.ndim >= 1 and right.shape[-1] == left.shape[-1]

    second = draw.value(multiplies)
    if draw[second].ndim == 1:
        return Step("{0} @ {1}", (first, second), rounds=True)
    codes = ["{0} @ {1}.transpose(-1, -2)"]
    if draw[second].ndim == 2:
        codes += ["F.linear({0}, {1})", "F.linear({0}, {1}).relu()", "F.gelu(F.linear({0}, {1}))"]
    return Step(draw.among(codes), (first, second), rounds=True)


@proposes(1)
def biased_product(draw: Draw) -> Step:
    bias = draw.value(lambda tensor: tensor.is_floating_point() and tensor.ndim <= 2)
    dtype = draw[bias].dtype
    first = draw.value(lambda tensor: tensor.dtype is dtype and tensor.ndim == 2)
    second = draw.value(lambda tensor: tensor.dtype is dtype and tensor.ndim == 2)
    beta = draw.among(["", ", beta=0.5", ", alpha=2.0", ", beta=0"])
    return Step(f"torch.addmm({{0}}, {{1}}, {{2}}.t(){beta})", (bias, first, second), rounds=True)


@proposes(1)
def batched(draw: Draw) -> Step:
    first = draw.value(lambda tensor: tensor.is_floating_point() and tensor.ndim == 3)
    shape, dtype = draw[first].shape, draw[first].dtype
    second = draw.value(lambda other: other.dtype is dtype and other.ndim == 3 and other.shape[0] == shape[0])
    codes = ["torch.bmm({0}, {1}.mT)", "torch.bmm({0}, {1})", "torch.einsum('bij,bkj->bik', {0}, {1})"]
    codes.append("F.scaled_dot_product_attention({0}, {1}, {1})")
    return Step(draw.among(codes), (first, second), rounds=True)


@proposes(2)
def convolution(draw: Draw) -> Step:
    image = draw.value(lambda tensor: tensor.is_floating_point() and tensor.ndim == 4)
    dtype, channels = draw[image].dtype, draw[image].shape[1]
    weight = draw.value(lambda other: other.dtype is dtype and other.ndim == 4 and other.shape[1] in (channels, 1))
    groups = channels if draw[weight].shape[1] == 1 else 1
    stride, padding = draw.among([1, 2]), draw.among([0, 1])
    code = f"F.conv2d({{0}}, {{1}}, stride={stride}, padding={padding}, groups={groups})"
    return Step(code + draw.among(["", ".relu()"]), (image, weight), rounds=True)
