"""Matrix products whose sizes the matrix units do not like get weights padded at compile time, on CUDA.

cuBLAS reads 16 bytes at a time where rows begin at multiples of 16 bytes, and falls back to kernels that take three
times as long where they do not: BERT's decoder of 30522 columns. The columns added are zero, their results are left
unread; rows added (the inner dimension) meet zeros in the other operand, which the kernel that makes it writes.
"""

from __future__ import annotations

from torch import fx

from stages.ir.graph import Graph
from stages.rewrite.edit import aten, call, calls, frozen_values, tensor_of
from stages.rewrite.siblings import ALIGNMENT, PRODUCTS, operands

# Multiplications below which the product takes no longer than the copy that an unaligned result may need.
SMALLEST_PRODUCT = 1 << 24


def pad_unaligned(graph: Graph) -> str:
    """Pad the frozen right operand of each large product whose row length is no multiple of 16 bytes."""
    if graph.training or graph.device.type != "cuda":
        return ""
    known = frozen_values(graph)
    padded = [note for node in calls(graph, *PRODUCTS) if (note := _pad(graph, node, known))]
    return f"products padded to aligned sizes: {', '.join(padded)}" if padded else ""


def _pad(graph: Graph, node: fx.Node, known: set[fx.Node]) -> str:
    """Pad one product; what was done, or nothing."""
    bias, left, weight = operands(node)
    value, given = tensor_of(node), tensor_of(left)
    assert value is not None and given is not None
    (rows, inner), columns = given.shape, value.shape[1]
    unit = ALIGNMENT // value.dtype.itemsize
    wider, deeper = -columns % unit, -inner % unit
    if weight not in known or node.kwargs or not (wider or deeper) or rows * inner * columns < SMALLEST_PRODUCT:
        return ""
    if wider and bias is not None:
        vector = tensor_of(bias)
        if bias not in known or vector is None or vector.shape != (columns,):
            return ""
    body = graph.module.graph
    with body.inserting_before(node):
        # Padded as [out, in], the weight's usual memory.
        turned = call(body, aten.permute.default, (weight, [1, 0]), like=node)
        square = call(body, aten.constant_pad_nd.default, (turned, [0, deeper, 0, wider], 0.0), like=node)
        new_weight = call(body, aten.permute.default, (square, [1, 0]), like=node)
        if deeper:
            left = call(body, aten.constant_pad_nd.default, (left, [0, deeper], 0.0), like=node)
        if wider and bias is not None:
            bias = call(body, aten.constant_pad_nd.default, (bias, [0, wider], 0.0), like=node)
        args = (left, new_weight) if bias is None else (bias, left, new_weight)
        new = call(body, node.target, args, like=node)  # type: ignore[arg-type]
        if wider:
            new = call(body, aten.slice.Tensor, (new, 1, 0, columns), like=node)
    node.replace_all_uses_with(new)
    body.erase_node(node)
    known.update((turned, square, new_weight))
    return f"{rows}x{columns}x{inner} to {rows}x{columns + wider}x{inner + deeper}"
