"""The tanh form of GELU recognised where a model spells it out, as Hugging Face's GPT-2 does (`gelu_new`):

    0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))

As one operation it can be a library's epilogue of the product before it (fusion's `library_epilogues`). Under autocast
the cube is computed in float32, so the result is float32; where it is only read rounded, GELU gives it rounded.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.ir.words import counted
from stages.rewrite.edit import aten, call, calls, drop_dead, tensor_of

HALF = (torch.bfloat16, torch.float16)


def fuse_gelu(graph: Graph) -> str:
    """Replace spelled-out GELUs by `aten.gelu`, on CUDA."""
    if graph.training or graph.device.type != "cuda":
        return ""
    done = [node for node in calls(graph, aten.tanh.default) if _replace(graph, node)]
    drop_dead(graph)
    return f"{counted(len(done), 'GELU')} put together from parts" if done else ""


def _split(node: Any, target: Any, wanted: float) -> Any:
    """The other operand where `node` is `target` of something and the number `wanted`, in either order; else None."""
    if not isinstance(node, fx.Node) or node.target is not target or node.kwargs:
        return None
    for number, other in (tuple(node.args), tuple(reversed(node.args))):
        if isinstance(number, (int, float)) and math.isclose(number, wanted, rel_tol=1e-6):
            return other
    return None


def _under_cast(node: Any) -> Any:
    """What `node` is a float32 copy of; `node` itself if it is none."""
    if isinstance(node, fx.Node) and node.target is aten._to_copy.default and node.meta["val"].dtype is torch.float32:
        return node.args[0]
    return node


def _argument(tanh: fx.Node) -> fx.Node | None:
    """x, where `tanh` is that of the formula."""
    inside = _split(tanh.args[0], aten.mul.Tensor, math.sqrt(2 / math.pi))
    if not isinstance(inside, fx.Node) or inside.target is not aten.add.Tensor or inside.kwargs:
        return None
    for x, cubic in (tuple(inside.args), tuple(reversed(inside.args))):
        cube = _split(cubic, aten.mul.Tensor, 0.044715)
        if isinstance(cube, fx.Node) and cube.target is aten.pow.Tensor_Scalar and cube.args[1] == 3:
            if isinstance(x, fx.Node) and _under_cast(cube.args[0]) is _under_cast(x):
                return x
    return None


def _replace(graph: Graph, tanh: fx.Node) -> bool:
    x = _argument(tanh)
    users = list(tanh.users)
    if x is None or len(users) != 1 or _split(users[0], aten.add.Tensor, 1.0) is not tanh or len(users[0].users) != 1:
        return False
    product = next(iter(users[0].users))
    if product.target is not aten.mul.Tensor or product.kwargs:
        return False
    half = next((operand for operand in product.args if operand is not users[0]), None)
    scaled = _split(half, aten.mul.Tensor, 0.5)
    if scaled is None or _under_cast(scaled) is not _under_cast(x):
        return False
    body, source = graph.module.graph, _under_cast(x)
    result, value = product.meta["val"], tensor_of(source)
    assert value is not None
    narrow = value.dtype in HALF and all(_only_rounded(user, value.dtype) for user in product.users)
    with body.inserting_before(product):
        if not narrow and value.dtype is not result.dtype:
            source = call(body, aten._to_copy.default, (source,), {"dtype": result.dtype}, like=product)
        new = call(body, aten.gelu.default, (source,), {"approximate": "tanh"}, like=product)
    if narrow:
        _read_rounded(product, new)
    else:
        product.replace_all_uses_with(new)
    body.erase_node(product)
    return True


def _only_rounded(user: fx.Node, dtype: torch.dtype) -> bool:
    """Whether `user` rounds its operand to `dtype`, or is a reshape that is only read so."""
    if user.target is aten.view.default:
        return all(_only_rounded(reader, dtype) for reader in user.users)
    return user.target is aten._to_copy.default and user.kwargs == {"dtype": dtype}


def _read_rounded(wide: fx.Node, rounded: fx.Node) -> None:
    """Let what reads `wide` through reshapes and a rounding read `rounded` through the reshapes."""
    body = wide.graph
    for user in list(wide.users):
        if user.target is aten.view.default:
            with body.inserting_before(user):
                view = call(body, user.target, (rounded, *user.args[1:]), like=user)
            _read_rounded(user, view)
        else:
            user.replace_all_uses_with(rounded)
        body.erase_node(user)
