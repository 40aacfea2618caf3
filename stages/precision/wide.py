"""Half-precision products computed in float32: the operands keep their rounded values, the result is rounded once.

On a CPU without instructions for the half type the library emulates it, 8 to 26 times slower than float32. A float32
product of rounded operands with float32 accumulation is what the emulation computes, so the values are the same to
within the order of summation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph

aten = torch.ops.aten

# Which operands of each operator are tensors that take part in the product.
PRODUCTS: dict[Any, tuple[int, ...]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (0, 1, 2),
    aten.baddbmm.default: (0, 1, 2),
    aten.mv.default: (0, 1),
    aten.addmv.default: (0, 1, 2),
    aten.dot.default: (0, 1),
    aten.convolution.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
}


def has_half_instructions(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies `dtype` matrices in hardware (AVX-512 BF16, AVX-512 FP16 or AMX)."""
    if dtype is torch.bfloat16:
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.cpu._is_amx_fp16_supported()


def widen_products(graph: Graph, dtype: torch.dtype) -> int:
    """Run every product of `dtype` operands in float32; the number of products changed."""
    count = 0
    for node in list(graph.module.graph.nodes):
        if node.op == "call_function" and node.target in PRODUCTS and _first(node).dtype is dtype:
            _widen(graph.module.graph, node, dtype)
            count += 1
    graph.module.recompile()
    return count


def _first(node: fx.Node) -> torch.Tensor:
    value = node.meta["val"]
    tensor: torch.Tensor = value[0] if isinstance(value, (tuple, list)) else value
    return tensor


def _cast(graph: fx.Graph, node: fx.Node, dtype: torch.dtype, value: torch.Tensor) -> fx.Node:
    cast = graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    cast.meta = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
    cast.meta["val"] = value
    return cast


def _widen(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> None:
    tensors = PRODUCTS[node.target]
    with graph.inserting_before(node):
        args = []
        for position, argument in enumerate(node.args):
            if position in tensors and isinstance(argument, fx.Node):
                argument = _cast(graph, argument, torch.float32, argument.meta["val"].to(torch.float32))
            args.append(argument)
        node.args = tuple(args)
    if "attn_mask" in node.kwargs and isinstance(mask := node.kwargs["attn_mask"], fx.Node):
        if mask.meta["val"].dtype is dtype:
            with graph.inserting_before(node):
                wide = _cast(graph, mask, torch.float32, mask.meta["val"].to(torch.float32))
            node.update_kwarg("attn_mask", wide)
    old = node.meta["val"]
    if isinstance(old, torch.Tensor):
        node.meta["val"] = old.to(torch.float32)
        results = {node: old}
    else:
        node.meta["val"] = type(old)(v.to(torch.float32) if v.dtype is dtype else v for v in old)
        results = {user: user.meta["val"] for user in node.users if old[user.args[1]].dtype is dtype}
        for result in results:
            result.meta["val"] = node.meta["val"][result.args[1]]
    for result, rounded in results.items():
        users = list(result.users)
        with graph.inserting_after(result):
            # The cast takes over the fake value of the product, and with it the storage that later views share.
            narrow = _cast(graph, result, dtype, rounded)
        for user in users:
            user.replace_input_with(result, narrow)
