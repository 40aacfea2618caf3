"""What a node is to the planner of fusions, and why a node is no kernel of ours."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from stages.fusion.lowering.context import Context
from stages.fusion.lowering.registry import CREATIONS, LOWERINGS, TEMPLATES, Kind
from stages.fusion.lowering.storage import is_view
from stages.fusion.lowering.value import NotFusable
from stages.ir.dtype import from_torch
from stages.ir.graph import values_of


def kind_of(node: fx.Node) -> Kind:
    """The kind of a node. A `getitem` has the kind of the node it selects from; a placeholder is EXTERN."""
    return _examined(node)[0]


def why_not(node: fx.Node) -> str:
    """Why `node` is no kernel of ours, in one plain sentence without a full stop; empty where it is one.

    A view is none either but needs no work: its reason is empty, too.
    """
    return _examined(node)[1]


def _examined(node: fx.Node) -> tuple[Kind, str]:
    """The kind of `node`, and the reason if that is EXTERN."""
    if node.op != "call_function":
        return Kind.EXTERN, f"it is a {node.op}"
    if is_view(node):
        return Kind.VIEW, ""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return _examined(node.args[0])
    if not isinstance(node.target, OpOverload) or node.target not in LOWERINGS or node.target in TEMPLATES:
        return Kind.EXTERN, _without_lowering(node)
    if reason := _unfit(node):
        return Kind.EXTERN, reason
    context = Context([node])
    try:
        context.lower(node)
    except NotFusable as refusal:
        return Kind.EXTERN, refusal.reason
    if node.target in CREATIONS:
        return Kind.CREATION, ""
    return Kind.REDUCTION if context.reductions else Kind.POINTWISE, ""


# What a library computes better than a loop, by words in the operator's name.
_LIBRARY_WORK = {
    "attention": "attention is left to torch's library",
    "convolution": "a convolution is left to torch's library",
    "linear": "a matrix product is left to torch's library",
    "mm": "a matrix product is left to torch's library",
}


def _without_lowering(node: fx.Node) -> str:
    """Why an operator that the loop IR does not have is none of ours."""
    namespace, _, name = str(node.target).partition(".")
    if namespace == "torchweld":
        return "it is one kernel already, an operator of torchweld's own"
    return next(
        (reason for word, reason in _LIBRARY_WORK.items() if word in name), f"there is no lowering of {node.target}"
    )


def _unfit(node: fx.Node) -> str:
    """What is wrong with the tensors of a call, whatever the operator."""
    results = [value for value in values_of(node) if isinstance(value, Tensor)]
    operands = [value for source in node.all_input_nodes for value in values_of(source) if isinstance(value, Tensor)]
    if not results:
        return "it gives no tensor"
    if results[0].numel() == 0:
        return "its result is empty"
    for tensor in (*results, *operands):
        if from_torch(tensor.dtype) is None:
            return f"the loop IR has no type {str(tensor.dtype).removeprefix('torch.')}"
        if tensor.layout is not torch.strided or tensor.is_sparse:
            return f"it works on a tensor of layout {tensor.layout}"
        if tensor.device != results[0].device:
            return f"it works on {tensor.device} and {results[0].device}"
        if any(not isinstance(size, int) for size in tensor.shape):
            return "a shape is known only when the program runs"
    return ""
