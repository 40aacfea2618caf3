"""The first convolution of a vision net, which reads an image of few channels, as work that matrix units like. CUDA.

Patches: where the kernel is as large as the stride, no pixel is read twice, and the convolution is a matrix product of
the patches, laid out as rows:

    [N, C, h*p, w*q]  ->  [N*h*w, C*p*q] @ [C*p*q, O] + bias

Space to depth: with stride s > 1, each s x s block of pixels becomes one pixel with s*s times the channels, and the
kernel, padded with zeros to a multiple of s, is rearranged likewise; a 7x7 kernel of stride 2 over 3 (padded to 4)
channels becomes a 4x4 kernel of stride 1 over 16. In one dimension, with u = s*a + r:

    y[i] = sum_u w[u] x[s*i + u] = sum_a sum_r w[s*a + r] x[s*(i + a) + r]

Both rearrange the image by one kernel, which casts it too, and the weight once, at compile time.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.ir.words import counted
from stages.rewrite.edit import aten, call, calls, frozen_values, tensor_of
from stages.rewrite.layout import on_matrix_units

FEW_CHANNELS = 4
CHANNEL_UNIT = 8  # channels of half precision in 16 bytes


class Window(NamedTuple):
    """A convolution over images: sizes of the kernel, its steps, and the zeros before the first row and column."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]


def patches_to_linear(graph: Graph) -> str:
    """Convolutions whose kernel is as large as their stride become matrix products."""
    found = _candidates(graph)
    done = [node for node in found if _is_patches(_window(node)) and _to_linear(graph, node)]
    return f"{counted(len(done), 'convolution')} over patches as matrix products" if done else ""


def space_to_depth(graph: Graph) -> str:
    """Strided convolutions over few channels become dense ones over more channels."""
    found = [node for node in _candidates(graph) if _few_channels(node)]
    done = [node for node in found if _overlaps(_window(node)) and _to_depth(graph, node)]
    return f"{counted(len(done), 'strided convolution')} over few channels on blocks of pixels" if done else ""


def _few_channels(node: fx.Node) -> bool:
    """Whether matrix units would be fed with few channels of an image."""
    weight = tensor_of(node.args[1])
    return weight is not None and weight.shape[1] <= FEW_CHANNELS and on_matrix_units(weight.dtype)


def _candidates(graph: Graph) -> list[fx.Node]:
    """Plain convolutions over images: one group, no dilation, not transposed, the weight frozen."""
    if graph.training or graph.device.type != "cuda":
        return []
    known = frozen_values(graph)
    found = []
    for node in calls(graph, aten.convolution.default):
        image, weight, _, _, _, dilation, transposed, _, groups = node.args
        value = tensor_of(image)
        if value is None or value.dim() != 4 or value.numel() == 0 or weight not in known:
            continue
        if not transposed and groups == 1 and set(dilation) == {1}:  # type: ignore[arg-type]
            found.append(node)
    return found


def _window(node: fx.Node) -> Window:
    def pair(values: Any) -> tuple[int, int]:
        first, second = values if len(values) == 2 else (values[0], values[0])
        return int(first), int(second)

    return Window(pair(tensor_of(node.args[1]).shape[2:]), pair(node.args[3]), pair(node.args[4]))  # type: ignore[union-attr]


def _is_patches(window: Window) -> bool:
    return window.kernel == window.stride and window.kernel != (1, 1) and window.padding == (0, 0)


def _overlaps(window: Window) -> bool:
    """Whether windows overlap, and blocks of pixels are of a size that makes whole 16 bytes of few channels."""
    steps = set(window.stride)
    return len(steps) == 1 and window.stride[0] % 2 == 0 and min(window.kernel) > window.stride[0]


def _to_linear(graph: Graph, node: fx.Node) -> bool:
    image, weight, bias = node.args[:3]
    batch, outputs, height, width = node.meta["val"].shape
    channels, (down, right) = image.meta["val"].shape[1], _window(node).kernel  # type: ignore[union-attr]
    inner = channels * down * right
    body = graph.module.graph
    with body.inserting_before(node):

        def do(target: Any, *args: Any) -> fx.Node:
            return call(body, target, args, like=node)

        image = _cropped(body, node, image, (height * down, width * right))
        blocks = do(aten.reshape.default, image, [batch, channels, height, down, width, right])
        turned = do(aten.permute.default, blocks, [0, 2, 4, 1, 3, 5])
        rows = _rows(body, node, turned, [batch * height * width, inner])
        matrix = do(aten.permute.default, do(aten.reshape.default, weight, [outputs, inner]), [1, 0])
        product = do(aten.mm.default, rows, matrix) if bias is None else do(aten.addmm.default, bias, rows, matrix)
        images = do(aten.view.default, product, [batch, height, width, outputs])
        new = do(aten.permute.default, images, [0, 3, 1, 2])
    node.replace_all_uses_with(new)
    body.erase_node(node)
    return True


def _cropped(body: fx.Graph, like: fx.Node, image: Any, size: tuple[int, int]) -> fx.Node:
    """The first rows and columns of an image: those that some patch reads."""
    for dimension, wanted in zip((2, 3), size, strict=True):
        if image.meta["val"].shape[dimension] != wanted:
            image = call(body, aten.slice.Tensor, (image, dimension, 0, wanted), like=like)
    assert isinstance(image, fx.Node)
    return image


def _rows(body: fx.Graph, like: fx.Node, source: fx.Node, shape: list[int]) -> fx.Node:
    """`source` as a dense tensor of another shape."""
    dense = call(body, aten.clone.default, (source,), {"memory_format": torch.contiguous_format}, like=like)
    return call(body, aten.view.default, (dense, shape), like=like)


def _to_depth(graph: Graph, node: fx.Node) -> bool:
    image, weight, bias = node.args[:3]
    window = _window(node)
    step = window.stride[0]
    body = graph.module.graph
    height, width = node.meta["val"].shape[2:]
    kernel = (-(-window.kernel[0] // step), -(-window.kernel[1] // step))  # in blocks
    blocks = (height + kernel[0] - 1, width + kernel[1] - 1)
    with body.inserting_before(node):
        image = _padded(body, node, image, window, (blocks[0] * step, blocks[1] * step))
        deep = _image_in_blocks(body, node, image, blocks, step)
        dense = _kernel_in_blocks(body, node, weight, kernel, step)  # type: ignore[arg-type]
        rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        new = call(body, aten.convolution.default, (deep, dense, bias, *rest), like=node)
    node.replace_all_uses_with(new)
    body.erase_node(node)
    return True


def _missing_channels(channels: int, step: int) -> int:
    """How many channels of zeros make those of a block fill whole 16 bytes."""
    return -channels % (CHANNEL_UNIT // math.gcd(CHANNEL_UNIT, step * step))


def _padded(body: fx.Graph, like: fx.Node, image: Any, window: Window, size: tuple[int, int]) -> fx.Node:
    """`image` with the window's zeros before it, with zeros after it (or cropped) to `size`, and with channels of
    zeros: all in one step."""
    channels, *shape = image.meta["val"].shape[1:]
    after = [wanted - have - before for wanted, have, before in zip(size, shape, window.padding, strict=True)]
    image = _cropped(body, like, image, (shape[0] + min(0, after[0]), shape[1] + min(0, after[1])))
    zeros = [window.padding[1], max(after[1], 0), window.padding[0], max(after[0], 0)]
    zeros += [0, _missing_channels(channels, window.stride[0])]
    return call(body, aten.constant_pad_nd.default, (image, zeros, 0.0), like=like) if any(zeros) else image


def _image_in_blocks(body: fx.Graph, like: fx.Node, image: fx.Node, blocks: tuple[int, int], step: int) -> fx.Node:
    """[N, C, h*s, w*s] as [N, s*s*C, h, w], channels-last: the channels of a block lie side by side."""
    batch, channels = image.meta["val"].shape[:2]
    shape = [batch, channels, blocks[0], step, blocks[1], step]
    split = call(body, aten.reshape.default, (image, shape), like=like)
    turned = call(body, aten.permute.default, (split, [0, 2, 4, 3, 5, 1]), like=like)
    deep = _rows(body, like, turned, [batch, *blocks, step * step * channels])
    return call(body, aten.permute.default, (deep, [0, 3, 1, 2]), like=like)


def _kernel_in_blocks(body: fx.Graph, like: fx.Node, weight: fx.Node, kernel: tuple[int, int], step: int) -> fx.Node:
    """[O, C, u, v], with zeros to [O, C, s*a, s*b], as [O, s*s*C, a, b] in the order of `_image_in_blocks`."""
    outputs, channels, *size = weight.meta["val"].shape
    more = _missing_channels(channels, step)
    zeros = [0, kernel[1] * step - size[1], 0, kernel[0] * step - size[0], 0, more]
    if any(zeros):
        weight = call(body, aten.constant_pad_nd.default, (weight, zeros, 0.0), like=like)
    shape = [outputs, channels + more, kernel[0], step, kernel[1], step]
    split = call(body, aten.reshape.default, (weight, shape), like=like)
    turned = call(body, aten.permute.default, (split, [0, 3, 5, 1, 2, 4]), like=like)
    return _rows(body, like, turned, [outputs, step * step * (channels + more), *kernel])
