"""The bias of a float32 matrix product as an addition of its own, on CUDA.

torch gives a product with a bias to cuBLASLt, and for float32 that takes other kernels than cuBLAS does for the product
alone. Where a result has few tiles for the multiprocessors they take up to 2.7 times as long; the table is in
`docs/measurements/h200_gemm.md`. As an addition in the graph the bias goes into the kernel that reads the result, or
into a product that becomes a kernel itself; where there is neither it is a small kernel. Left as they are: half types,
where the bias costs half a microsecond at most, less than a kernel; and TF32, which was not measured.
"""

from __future__ import annotations

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.ir.library_flags import tf32_matmuls
from stages.ir.words import counted
from stages.rewrite.edit import aten, call, calls, replace, tensor_of

# Elements of the result, rows times columns, from which on the bias is as good in the product: between 512x2304, where
# it cost 5 to 22 %, and 512x3072, where it cost nothing. These are of an H200, with 132 multiprocessors.
LARGEST_RESULT = 5 << 18


def peel_linear_bias(graph: Graph) -> str:
    """Take the row that is added to it out of each small product of float32."""
    if graph.training or graph.device.type != "cuda" or tf32_matmuls():
        return ""
    found = [node for node in calls(graph, aten.addmm.default) if _is_slow(node)]
    for node in found:
        _peel(graph, node)
    return f"{counted(len(found), 'bias', 'biases')} of float32 products added where it can fuse" if found else ""


def _is_slow(node: fx.Node) -> bool:
    """An unscaled product of float32, small enough, plus one row for all of its rows."""
    value, row = tensor_of(node), tensor_of(node.args[0])
    if value is None or row is None or value.dtype is not torch.float32 or row.dtype is not value.dtype:
        return False
    columns = value.shape[1]
    unscaled = all(factor == 1 for factor in node.kwargs.values())  # alpha and beta
    return unscaled and tuple(row.shape) in ((columns,), (1, columns)) and value.numel() < LARGEST_RESULT


def _peel(graph: Graph, node: fx.Node) -> None:
    row, left, right = node.args
    body = graph.module.graph
    with body.inserting_before(node):
        product = call(body, aten.mm.default, (left, right), like=node)
        total = call(body, aten.add.Tensor, (product, row), like=node)
    replace(node, total)
