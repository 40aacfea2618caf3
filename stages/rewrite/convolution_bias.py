"""The bias of a convolution as an addition of its own, on CUDA.

torch adds a convolution's bias by a kernel of its own there, which reads and writes the whole image once more. As an
addition in the graph it goes into the kernel that reads the image, or into cuDNN's epilogue (fusion's
`library_epilogues`). Where two convolutions are added, as in a residual block that changes its width, one addition
does for both biases; constant folding computes their sum.
"""

from __future__ import annotations

from torch import fx

from stages.ir.graph import Graph
from stages.ir.words import counted
from stages.rewrite.edit import aten, call, calls, frozen_values, tensor_of


def peel_bias(graph: Graph) -> str:
    """Take the bias out of each convolution that has one."""
    if graph.training or graph.device.type != "cuda":
        return ""
    known = frozen_values(graph)
    joined = sum(_join(graph, node, known) for node in calls(graph, aten.add.Tensor))
    peeled = sum(_peel(graph, node) for node in calls(graph, aten.convolution.default))
    parts = [f"{counted(joined, 'pair')} of biases of added convolutions joined"] * bool(joined)
    parts += [f"{counted(peeled, 'bias', 'biases')} of convolutions added where it can fuse"] * bool(peeled)
    return ", ".join(parts)


def _biased(node: object) -> bool:
    """A convolution with a bias that one operation alone reads."""
    if not isinstance(node, fx.Node) or node.target is not aten.convolution.default or len(node.users) != 1:
        return False
    return node.args[2] is not None


def _join(graph: Graph, add: fx.Node, known: set[fx.Node]) -> bool:
    """Where `add` adds two convolutions of one shape: the later one gets the sum of the biases, the other none."""
    first, second = add.args
    if not (_biased(first) and _biased(second)) or first is second or add.kwargs.get("alpha", 1) != 1:
        return False
    assert isinstance(first, fx.Node) and isinstance(second, fx.Node)
    biases = [first.args[2], second.args[2]]
    if not all(isinstance(bias, fx.Node) and bias in known for bias in biases):
        return False
    values = [tensor_of(node) for node in (first, second)]
    assert values[0] is not None and values[1] is not None
    if (values[0].shape, values[0].dtype) != (values[1].shape, values[1].dtype):
        return False
    early, late = sorted((first, second))
    body = graph.module.graph
    with body.inserting_before(late):  # where both biases are known
        wide = tuple(_unrounded(bias) for bias in biases if isinstance(bias, fx.Node))
        total = call(body, aten.add.Tensor, wide, like=add)
        if total.meta["val"].dtype is not values[0].dtype:
            total = call(body, aten._to_copy.default, (total,), {"dtype": values[0].dtype}, like=add)
    early.update_arg(2, None)
    late.update_arg(2, total)
    return True


def _unrounded(node: fx.Node) -> fx.Node:
    """What a rounded bias was before its cast, so that the sum is rounded once."""
    source = node.args[0] if node.target is aten._to_copy.default else None
    if isinstance(source, fx.Node) and (value := tensor_of(source)) is not None and value.dtype.is_floating_point:
        return source
    return node


def _peel(graph: Graph, node: fx.Node) -> bool:
    bias = node.args[2]
    value = tensor_of(node)
    if not isinstance(bias, fx.Node) or value is None:
        return False
    body = graph.module.graph
    with body.inserting_after(node):
        shape = [1, -1, *([1] * (value.dim() - 2))]
        column = call(body, aten.view.default, (bias, shape), like=node)
    with body.inserting_after(column):
        total = call(body, aten.add.Tensor, (node, column), like=node)
    node.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)
    node.update_arg(2, None)
    return True
