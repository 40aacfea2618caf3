"""Epilogues of cuDNN's convolutions and cuBLASLt's products. Comes in: a graph. Goes out: one with fewer nodes.

    relu(convolution + bias [+ z])        cudnn_convolution_relu, cudnn_convolution_add_relu
    relu(addmm), gelu(addmm)              _addmm_activation

All of it is computed in float32 and rounded once. cuBLASLt's GELU is the tanh form with an approximate tanh: its error
is 2.5e-6 of the value, four times eager's (GPT-2 in float32 on an H200), so half types alone are left to it; they round
by 5e-4 and more. Used for the exact GELU (`cublaslt_gelu`), it moves values by less than bfloat16 rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from stages.fusion.absorption import Absorption, alike, find_addend, find_reader, finish, known_tensor
from stages.fusion.lowering.storage import is_view, tensor_of

aten = torch.ops.aten

CUDNN_TYPES = (torch.float16, torch.bfloat16, torch.float32)
HALF = (torch.float16, torch.bfloat16)
# What cuBLASLt computes after a product, and for which types of the result it is as precise as eager.
CUBLASLT_TYPES = {"cublaslt_relu": CUDNN_TYPES, "cublaslt_gelu_tanh": HALF, "cublaslt_gelu": HALF}


def absorb_into_call(node: fx.Node, names: Sequence[str], made: Absorption) -> None:
    """Let the library compute what reads `node`, a call of one of `LIBRARY_CALLS`, if `names` has that epilogue."""
    LIBRARY_CALLS[node.target](node, names, made)  # type: ignore[index]


class Sum(NamedTuple):
    """What a convolution is added to on its way to `relu`: a vector over the channels, and an image or none."""

    bias: fx.Node
    image: fx.Node | None
    relu: fx.Node
    between: tuple[fx.Node, ...]


def _convolution(node: fx.Node, names: Sequence[str], made: Absorption) -> None:
    found = _sum_of(node) if _fits_cudnn(node) else None
    if found is None:
        return
    rule = "cudnn_relu" if found.image is None else "cudnn_add_relu"
    if rule not in names:
        return
    data, weight, _, stride, padding, dilation, _, _, groups = node.args
    window = (stride, padding, dilation, groups)
    with made.nodes.inserting_before(found.relu):
        if found.image is None:
            plain = (data, weight, found.bias, *window)
            new = made.nodes.call_function(aten.cudnn_convolution_relu.default, plain)
        else:
            summed = (data, weight, found.image, 1.0, found.bias, *window)
            new = made.nodes.call_function(aten.cudnn_convolution_add_relu.default, summed)
    new.meta = dict(node.meta)
    made.absorbed[new] = (node, *found.between)
    finish([new], found.relu, rule, made)


def _fits_cudnn(node: fx.Node) -> bool:
    """A convolution over images, in one group and without gaps, of a type that cuDNN's fused kernels have."""
    dilation, transposed, groups = node.args[5], node.args[6], node.args[8]
    value = known_tensor(node)
    dense = not transposed and groups == 1 and set(dilation) == {1}  # type: ignore[arg-type]
    return bool(dense) and value.dim() == 4 and value.dtype in CUDNN_TYPES


def _sum_of(node: fx.Node) -> Sum | None:
    """The additions and the ReLU that read the convolution `node`, each alone; None if that is not all, or if there is
    no bias: cuDNN's wants one."""
    bias = node.args[2] if isinstance(node.args[2], fx.Node) else None
    value = node
    between: list[fx.Node] = []
    image: fx.Node | None = None
    while (reader := find_reader(value)) is not None:
        (_, *views), last = reader
        if views or not alike(node, last):
            return None
        if last.target is aten.relu.default:
            return None if bias is None else Sum(bias, image, last, tuple(between))
        column = _column(value, last) if bias is None else None
        other = find_addend(value, last) if column is None and image is None else None
        if column is not None:
            bias = column
        elif other is not None:
            image = other
            if bias is None and (biased := _biased(other)) is not None:  # the other summand's bias does as well
                (image, bias), between = biased, [*between, other]
        else:
            return None
        between.append(last)
        value = last
    return None


def _column(value: fx.Node, add: fx.Node) -> fx.Node | None:
    """The vector over the channels that `add` adds to `value`; None if it adds anything else."""
    others = [operand for operand in add.args if operand is not value]
    if add.target is not aten.add.Tensor or add.kwargs.get("alpha", 1) != 1 or len(others) != 1:
        return None
    node = others[0]
    if not isinstance(node, fx.Node) or tensor_of(node) is None or not is_view(node):
        return None
    (vector,) = node.all_input_nodes
    channels = known_tensor(value).shape[1]
    shape, source = known_tensor(node).shape, known_tensor(vector)
    right = shape in ((1, channels, 1, 1), (channels, 1, 1)) and source.shape == (channels,) and source.is_contiguous()
    return vector if right and source.dtype is known_tensor(value).dtype else None


def _biased(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The image and the vector that `node` adds, if one operation alone reads it."""
    if node.target is not aten.add.Tensor or len(node.users) != 1:
        return None
    image = node.args[0]
    if not isinstance(image, fx.Node) or tensor_of(image) is None or not alike(image, node):
        return None
    vector = _column(image, node)
    return None if vector is None else (image, vector)


def _product(node: fx.Node, names: Sequence[str], made: Absorption) -> None:
    reader = find_reader(node)
    bias = node.args[0]
    vector = tensor_of(bias) if isinstance(bias, fx.Node) else None
    if reader is None or node.kwargs or vector is None or vector.dim() != 1 or not vector.is_contiguous():
        return
    chain, last = reader
    rule = _activation(last)
    if rule not in names or not alike(chain[-1], last) or known_tensor(node).dtype not in CUBLASLT_TYPES[rule]:
        return
    node.target = aten._addmm_activation.default
    node.kwargs = {"use_gelu": rule != "cublaslt_relu"}
    finish(chain, last, rule, made)


def _activation(node: fx.Node) -> str:
    """The name of the epilogue that computes `node`; empty if there is none."""
    if node.target is aten.relu.default:
        return "cublaslt_relu"
    if node.target is not aten.gelu.default:
        return ""
    return "cublaslt_gelu_tanh" if node.kwargs.get("approximate", "none") == "tanh" else "cublaslt_gelu"


LIBRARY_CALLS: dict[Callable[..., Any], Callable[[fx.Node, Sequence[str], Absorption], None]] = {
    aten.convolution.default: _convolution,
    aten.addmm.default: _product,
}
