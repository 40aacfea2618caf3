"""Convolution nets run channels-last through on CUDA: no transposes inside.

cuDNN's matrix-unit kernels read and write images with the channels innermost; given another layout it transposes on
the way in and on the way out of each convolution. Here weights are laid out so once (constant folding makes that a
constant), inputs where they enter, and every operation in between keeps the layout of what it reads. What the graph
returns gets eager's strides back (`propagate.py`), and a copy that is needed is an ordinary operation that fuses with
what makes its operand.

On a CPU oneDNN chooses the layout itself, and for float32 without TF32 cuDNN has no such kernels: what it has for that
layout is slower by a half (docs/measurements/h200_rewrites.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.ir.library_flags import tf32_convolutions
from stages.ir.words import counted
from stages.rewrite.edit import aten, call, calls, fake_mode_of, tensor_of
from stages.rewrite.propagate import update

_CHANNELS_LAST: dict[str, Any] = {"memory_format": torch.channels_last}


def channels_last(graph: Graph) -> str:
    """Give the image and the weight of each 2-D convolution channels-last memory; other operations follow."""
    if graph.training or graph.device.type != "cuda":
        return ""
    if not any(_two_dimensional(node) for node in calls(graph, aten.convolution.default)):
        return ""
    body = graph.module.graph
    laid_out: dict[fx.Node, fx.Node] = {}
    convolutions = 0
    with fake_mode_of(graph.module), torch.no_grad():
        for node in list(body.nodes):
            if node.op != "call_function":
                continue
            if node.target is aten.convolution.default and _two_dimensional(node):
                convolutions += 1
                for position in (0, 1):
                    _lay_out(body, node, position, laid_out)
            update(body, node)
    images = len({node.args[0] for node in calls(graph, aten.convolution.default)} & set(laid_out.values()))
    return f"{counted(convolutions, 'convolution')} channels-last, by {counted(images, 'copy', 'copies')} of images"


def _two_dimensional(node: fx.Node) -> bool:
    """A convolution over images [N, C, H, W] that runs on matrix units."""
    image = tensor_of(node.args[0])
    return image is not None and image.dim() == 4 and image.numel() > 0 and on_matrix_units(image.dtype)


def on_matrix_units(dtype: torch.dtype) -> bool:
    """Whether cuDNN multiplies this type on matrix units; whether TF32 is allowed is set while a model is compiled."""
    return dtype in (torch.float16, torch.bfloat16) or (dtype is torch.float32 and tf32_convolutions())


def _lay_out(body: fx.Graph, node: fx.Node, position: int, laid_out: dict[fx.Node, fx.Node]) -> None:
    """Argument `position` of `node` in channels-last memory: itself if it lies so, else a copy that all readers share.

    A tensor whose layout says nothing (one channel, or one pixel) is left alone; a weight never is, since by its
    strides torch tells which layout the result gets.
    """
    source = node.args[position]
    assert isinstance(source, fx.Node)
    value = tensor_of(source)
    assert value is not None
    weight = position == 1
    if is_channels_last(value) and (not weight or _says_channels_last(value)):
        return
    if source not in laid_out:
        with body.inserting_before(node):
            laid_out[source] = call(body, aten.clone.default, (source,), _CHANNELS_LAST, like=node)
    node.update_arg(position, laid_out[source])


def is_channels_last(value: torch.Tensor) -> bool:
    """Whether an image's memory is dense with the channels innermost, whatever its strides say of sizes of one."""
    return value.is_contiguous(memory_format=torch.channels_last)


def _says_channels_last(value: torch.Tensor) -> bool:
    """Whether torch reads the strides as channels-last rather than as rows: for a 1x1 kernel both would do."""
    channels = value.shape[1]
    return value.stride(1) == 1 and (channels == 1 or value.stride(3) == channels)
