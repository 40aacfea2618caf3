"""1x1 convolutions as matrix products, on CUDA, where the library then adds the bias, too.

A 1x1 convolution over channels-last images is the product of its pixels, as rows, with its weight: only views. cuDNN
has no call for convolution + bias alone, and the addition costs a pass over the image unless a kernel that reads it
takes it in; a convolution that reads it cannot. (With ReLU, cuDNN's fused call is as fast: `fusion.library_epilogues`.)
"""

from __future__ import annotations

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.ir.library_flags import tf32_matmuls
from stages.ir.words import counted
from stages.rewrite.edit import aten, call, calls, tensor_of
from stages.rewrite.layout import is_channels_last, on_matrix_units


def pointwise_to_linear(graph: Graph) -> str:
    """Make products of 1x1 convolutions whose biased result another convolution reads."""
    if graph.training or graph.device.type != "cuda":
        return ""
    found = [node for node in calls(graph, aten.convolution.default) if _is_pointwise(node)]
    done = [node for node in found if _replace(node)]
    return f"{counted(len(done), 'convolution')} over single pixels as matrix products" if done else ""


def _is_pointwise(node: fx.Node) -> bool:
    """A 1x1 convolution that reads every pixel of a channels-last image, in one group, without a bias of its own."""
    image, weight, bias, stride, padding, _, transposed, _, groups = node.args
    value, kernel = tensor_of(image), tensor_of(weight)
    if value is None or kernel is None or bias is not None or transposed or groups != 1 or kernel.dim() != 4:
        return False
    plain = tuple(kernel.shape[2:]) == (1, 1) and set(stride) == {1} and set(padding) == {0}  # type: ignore[arg-type]
    # A convolution in TF32 stays one where products are not allowed TF32: that is torch's default.
    as_fast = value.dtype is not torch.float32 or tf32_matmuls()
    return plain and on_matrix_units(value.dtype) and as_fast and is_channels_last(value)


def _bias_of(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The addition of a bias that alone reads `node`, and the bias as a vector (see `convolution_bias.py`)."""
    add = next(iter(node.users))
    if len(node.users) != 1 or add.target is not aten.add.Tensor or add.args[0] is not node or add.kwargs:
        return None
    column, channels = add.args[1], node.meta["val"].shape[1]
    if not isinstance(column, fx.Node) or column.target is not aten.view.default:
        return None
    vector = tensor_of(column.args[0])
    matches = vector is not None and vector.shape == (channels,) and column.meta["val"].shape == (1, channels, 1, 1)
    return (add, column.args[0]) if matches else None  # type: ignore[return-value]


def _replace(node: fx.Node) -> bool:
    found = _bias_of(node)
    if found is None or not any(user.target is aten.convolution.default for user in found[0].users):
        return False
    add, bias = found
    image, weight = node.args[:2]
    batch, outputs, height, width = node.meta["val"].shape
    channels = image.meta["val"].shape[1]  # type: ignore[union-attr]
    body = node.graph
    with body.inserting_before(add):
        pixels = call(body, aten.permute.default, (image, [0, 2, 3, 1]), like=node)
        rows = call(body, aten.view.default, (pixels, [batch * height * width, channels]), like=node)
        square = call(body, aten.view.default, (weight, [outputs, channels]), like=node)
        matrix = call(body, aten.permute.default, (square, [1, 0]), like=node)
        product = call(body, aten.addmm.default, (bias, rows, matrix), like=node)
        images = call(body, aten.view.default, (product, [batch, height, width, outputs]), like=node)
        new = call(body, aten.permute.default, (images, [0, 3, 1, 2]), like=node)
    add.replace_all_uses_with(new)
    body.erase_node(add)
    body.erase_node(node)
    return True
