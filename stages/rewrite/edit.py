"""Edits of an FX graph that keep `meta` true: new nodes get a value from the fake tensors of their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from stages.ir.graph import Graph
from stages.ir.memory import storage_of
from stages.ir.views import restrided

aten = torch.ops.aten

VIEWS = (aten.view.default, aten._unsafe_view.default)


def fake_mode_of(module: fx.GraphModule) -> FakeTensorMode:
    """The mode that the graph's fake tensors belong to; a new one for a graph that has none."""
    for node in module.graph.nodes:
        if isinstance(value := node.meta.get("val"), FakeTensor):
            return value.fake_mode
    return FakeTensorMode()


def value_of(argument: Any) -> Any:
    """`argument` with each node replaced by its fake value."""
    return fx.map_arg(argument, lambda node: node.meta["val"])


def computed(target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The fake value of a call, under the graph's fake mode."""
    result = target(*value_of(args), **value_of(kwargs))
    return restrided(result, value_of(args[0])) if target in VIEWS else result


def call(
    graph: fx.Graph,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    like: fx.Node,
    value: Any = None,
) -> fx.Node:
    """A call of `target` at the graph's insertion point, with the source line of `like`.

    `value` is its fake value; without it `target` is run on the fake values of its operands.
    """
    kwargs = kwargs or {}
    node = graph.call_function(target, args, kwargs)
    for key in ("stack_trace", "nn_module_stack", "original_aten"):
        if key in like.meta:
            node.meta[key] = like.meta[key]
    if value is None:
        assert graph.owning_module is not None
        with fake_mode_of(graph.owning_module), torch.no_grad():
            value = computed(target, args, kwargs)
    node.meta["val"] = value
    return node


def replace(old: fx.Node, new: fx.Node) -> None:
    """Every use of `old` becomes one of `new`, and `old` goes."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def calls(graph: Graph, *targets: Callable[..., Any]) -> list[fx.Node]:
    """The nodes that call one of `targets`, in order."""
    return [node for node in graph.module.graph.nodes if node.op == "call_function" and node.target in targets]


def tensor_of(node: Any) -> torch.Tensor | None:
    """The fake tensor of a node with one tensor value, else None."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def is_pure(node: fx.Node) -> bool:
    """Whether a call depends on nothing but its operands and changes nothing: safe to drop, to join, to fold."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return node.op == "call_function" and getattr(target, "__module__", "") == "_operator"
    return (
        not node.is_impure() and not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags
    )


def is_view(node: fx.Node) -> bool:
    """Whether the result shares storage with an operand."""
    mine = storage_of(tensor_of(node))
    if mine is None or node.op != "call_function":
        return False
    return any(storage_of(tensor_of(operand)) == mine for operand in node.all_input_nodes)


def frozen_values(graph: Graph) -> set[fx.Node]:
    """Weights and constants, and what is computed from them alone: known before the first call."""
    given = {entry.name for entry in graph.inputs if entry.kind != "user"}
    known: set[fx.Node] = set()
    for node in graph.module.graph.nodes:
        operands = node.all_input_nodes
        if node.name in given or (is_pure(node) and operands and all(operand in known for operand in operands)):
            known.add(node)
    return known


def output_of(graph: Graph) -> fx.Node:
    return next(node for node in reversed(graph.module.graph.nodes) if node.op == "output")


def drop_dead(graph: Graph) -> None:
    """Erase pure calls that nobody uses, and constants that nobody reads. Placeholders of tensors passed in stay."""
    module = graph.module
    for node in reversed(list(module.graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and (node.op == "get_attr" or is_pure(node)):
            module.graph.erase_node(node)
    unused = {n.name for n in module.graph.nodes if n.op == "placeholder" and not n.users}
    dead = [entry for entry in graph.inputs if entry.kind == "constant" and entry.name in unused]
    for node in list(module.graph.nodes):
        if node.op == "placeholder" and any(entry.name == node.name for entry in dead):
            module.graph.erase_node(node)
    graph.inputs = [entry for entry in graph.inputs if entry not in dead]
