"""The state of the random generator that attention on CUDA hands to its backward pass.

Comes in: an AOTAutograd graph. Goes out: the same graph, in which seed and offset lie where torch puts them. For
FakeTensors they lie on the GPU. In truth they do so only under a capture; otherwise they are numbers on the CPU, which
the backward pass reads from there (Note [Seed and Offset Device] in ATen's attention.cu). Without dropout nobody writes
or reads them, and memory of our own will do.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

aten = torch.ops.aten

_STATE = ("philox_seed", "philox_offset")


def place_generator_state(module: fx.GraphModule, training: bool) -> None:
    """Correct, in place, what the nodes of `module` say of seeds and offsets.

    In an inference graph the caller may get them, on the CPU as from eager. In training only a backward graph does, and
    unwritten ones stay on the GPU, so that both graphs can be CUDA graphs.
    """
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        for position, returned in enumerate(node.target._schema.returns):
            for user in [user for user in node.users if user.target is operator.getitem and user.args[1] == position]:
                if returned.name in _STATE and _on_cuda(user):
                    _place(module.graph, node, user, training)
        for name in _STATE:
            source = argument(node, name)
            if _on_cuda(source) and source.op == "placeholder" and argument(node, "dropout_p"):
                source.meta["val"] = _on_cpu(source.meta["val"])


def argument(node: fx.Node, name: str) -> Any:
    """The argument `name` of a call of an operator; None where it has none of that name, or it was left out."""
    assert isinstance(node.target, OpOverload)
    names = [each.name for each in node.target._schema.arguments]
    place = names.index(name) if name in names else len(node.args)
    return node.args[place] if place < len(node.args) else node.kwargs.get(name)


def _place(graph: fx.Graph, attention: fx.Node, state: fx.Node, training: bool) -> None:
    value: Tensor = state.meta["val"]
    if argument(attention, "dropout_p"):
        state.meta["val"] = _on_cpu(value)
        return
    device = value.device if training else torch.device("cpu")
    with graph.inserting_before(state), value.fake_mode:  # type: ignore[attr-defined]
        options: dict[str, Any] = {"dtype": value.dtype, "device": device}
        unwritten = graph.call_function(aten.empty.memory_format, (list(value.shape),), options)
        unwritten.meta = {**state.meta, "val": torch.empty(value.shape, dtype=value.dtype, device=device)}
    state.replace_all_uses_with(unwritten)
    graph.erase_node(state)


def _on_cuda(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, Tensor) and value.device.type == "cuda"


def _on_cpu(value: Any) -> Tensor:
    with value.fake_mode:
        return torch.empty(value.shape, dtype=value.dtype, device="cpu")
