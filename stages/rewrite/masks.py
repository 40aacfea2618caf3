"""Attention masks whose values are known: one that lets everything pass is dropped, a causal one becomes a flag.

Attention runs its fast path only without a mask tensor. A mask that the model builds from positions alone is a constant
after folding, so its values can be read. If it comes from weights, the graph notes that it was assumed to be so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph
from stages.rewrite.edit import aten, call, calls, drop_dead, is_view, tensor_of

# operator: position or keyword of (mask, is_causal)
ATTENTION: dict[Any, tuple[int | str, int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: ("attn_mask", 4),
    aten._scaled_dot_product_efficient_attention.default: (3, 6),
    aten._scaled_dot_product_cudnn_attention.default: (3, 6),
}


def fold_masks(graph: Graph) -> str:
    """Drop or replace the constant masks of attention."""
    dropped = causal = 0
    for node in calls(graph, *ATTENTION):
        where, flag = ATTENTION[node.target]
        mask = node.kwargs.get(where) if isinstance(where, str) else node.args[where]
        if not isinstance(mask, fx.Node) or (len(node.args) > flag and node.args[flag]):
            continue
        found = constant_behind(graph, mask)
        if found is None:
            continue
        name, view = found
        values = view(graph.input(name).tensor)
        if lets_all_pass(values):
            check, dropped = lets_all_pass, dropped + 1
        elif is_causal(values):
            check, causal = is_causal, causal + 1
            _set(node, flag, True)
        else:
            continue
        if isinstance(where, str):
            node.update_kwarg(where, None)
        else:
            _set(node, where, None)
        graph.assumed[f"the mask of {node.name} {check.__name__.replace('_', ' ')}"] = partial(holds, name, view, check)
        _choose_again(graph, node)
    drop_dead(graph)
    parts = [f"{dropped} masks that let everything pass dropped"] * bool(dropped)
    parts += [f"{causal} causal masks became a flag"] * bool(causal)
    return ", ".join(parts)


def _choose_again(graph: Graph, node: fx.Node) -> None:
    """Torch took the memory-efficient kernels for the sake of the mask: without it, let it choose among all."""
    if node.target is not aten._scaled_dot_product_efficient_attention.default:
        return
    users = list(node.users)
    query, key, value, _, _, *rest = node.args
    dropout = rest[0] if rest else 0.0
    causal = rest[1] if len(rest) > 1 else False
    if dropout or any(user.target is not operator.getitem or user.args[1] != 0 for user in users):
        return
    scale = {"scale": node.kwargs.get("scale")}
    body = graph.module.graph
    for user in users:
        with body.inserting_before(node):
            args = (query, key, value, None, 0.0, causal)
            new = call(body, aten.scaled_dot_product_attention.default, args, scale, like=node)
        user.replace_all_uses_with(new)
        body.erase_node(user)
    body.erase_node(node)  # without dropout it draws no random numbers


def lets_all_pass(mask: torch.Tensor) -> bool:
    """True of a boolean mask that is all true, and of an additive one that is all zero."""
    return bool(mask.all()) if mask.dtype is torch.bool else not bool(mask.count_nonzero())


def is_causal(mask: torch.Tensor) -> bool:
    """True of a mask over (queries, keys) of one length in which query i sees the keys up to i, whatever the batch.

    The least number of the type blocks as -inf does: each query sees itself, and exp of the difference is 0.
    """
    queries, keys = mask.shape[-2:]
    if queries != keys:
        return False
    lower = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    if mask.dtype is torch.bool:
        return bool((mask == lower).all())
    return bool(((mask == 0) == lower).all()) and bool((lower | (mask <= torch.finfo(mask.dtype).min)).all())


def holds(
    name: str,
    view: Callable[[Any], torch.Tensor],
    check: Callable[[torch.Tensor], bool],
    constants: dict[str, torch.Tensor],
) -> bool:
    """Whether `check` passes for the mask that `view` makes of constant `name`, with `constants` as they now are."""
    return name not in constants or check(view(constants[name]))


def _set(node: fx.Node, position: int, value: Any) -> None:
    args = list(node.args)
    defaults = [argument.default_value for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    args += defaults[len(args) : position + 1]
    args[position] = value
    node.args = tuple(args)


def constant_behind(graph: Graph, node: fx.Node) -> tuple[str, Callable[[Any], torch.Tensor]] | None:
    """The constant input that `node` is a view of, and the function from its tensor to the view."""
    chain: list[fx.Node] = []
    while node.op == "call_function" and is_view(node) and tensor_of(node.args[0]) is not None:
        chain.append(node)
        node = node.args[0]  # type: ignore[assignment]
    if node.op != "placeholder" or graph.input(node.name).kind != "constant":
        return None

    def view(tensor: torch.Tensor) -> torch.Tensor:
        for step in reversed(chain):
            tensor = step.target(tensor, *step.args[1:], **step.kwargs)  # type: ignore[operator]
        return tensor

    return node.name, view
