"""Constant folding: what depends on weights and literals alone is computed once, by the graph's prologue.

Comes in: a graph whose weights are placeholders. Goes out: the same graph with folded values as "constant" inputs, and
a prologue that recomputes them, so that a changed weight needs no new compilation. A view of a weight is no constant:
views cost nothing and follow the weight. A tensor filled with one number stays where it is: kernels make it on the fly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from stages.ir.graph import Graph, GraphInput, lies_as
from stages.ir.words import counted
from stages.rewrite.edit import aten, drop_dead, is_pure, is_view, tensor_of

FILLS = frozenset(
    getattr(packet, overload)
    for packet, overload in (
        (aten.full, "default"),
        (aten.zeros, "default"),
        (aten.ones, "default"),
        (aten.empty, "memory_format"),
        (aten.empty_strided, "default"),
        (aten.scalar_tensor, "default"),
        (aten.full_like, "default"),
        (aten.zeros_like, "default"),
        (aten.ones_like, "default"),
        (aten.empty_like, "default"),
    )
)
# A folded tensor that reads no weight (a mask, a table of positions) is kept only up to this size, in bytes.
LARGEST_LITERAL = 64 << 20


def fold_constants(graph: Graph) -> str:
    """Fold; the note says how many values became constants."""
    if graph.training:
        return ""
    module = graph.module
    constant = _constant_nodes(graph)
    needed = _needed(module, constant)
    if needed:
        _extend_prologue(graph, needed)
        drop_dead(graph)
        module.recompile()
    return f"{counted(len(needed), 'value')} folded into constants" if needed else ""


def _constant_nodes(graph: Graph) -> set[fx.Node]:
    """The nodes whose value is known before the first call."""
    given = {entry.name for entry in graph.inputs if entry.kind != "user"}
    constant: set[fx.Node] = set()
    for node in graph.module.graph.nodes:
        if node.op == "placeholder":
            known = node.name in given
        elif node.op == "call_function":
            known = is_pure(node) and all(operand in constant for operand in node.all_input_nodes)
        else:
            known = False
        if known:
            constant.add(node)
    return constant


def _needed(module: fx.GraphModule, constant: set[fx.Node]) -> list[fx.Node]:
    """The constant values that the rest reads, views looked through to what they are views of."""
    needed: dict[fx.Node, None] = {}
    reads_weight: dict[fx.Node, bool] = {}
    for node in module.graph.nodes:
        if node in constant:
            weight = node.op == "placeholder"
            reads_weight[node] = weight or any(reads_weight[operand] for operand in node.all_input_nodes)
    stack = [
        operand
        for node in reversed(module.graph.nodes)
        if node not in constant
        for operand in node.all_input_nodes
        if operand in constant
    ]
    seen: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node in seen or node.op == "placeholder" or node.target in FILLS:
            continue
        seen.add(node)
        tensor = tensor_of(node)
        too_large = tensor is not None and tensor.nbytes > LARGEST_LITERAL and not reads_weight[node]
        if tensor is None or too_large or is_view(node):
            stack.extend(node.all_input_nodes)
        else:
            needed[node] = None
    order = {node: number for number, node in enumerate(module.graph.nodes)}
    return sorted(needed, key=order.__getitem__)


def _extend_prologue(graph: Graph, needed: list[fx.Node]) -> None:
    """Move the computation of `needed` into the prologue and put constants in its place."""
    old = graph.prologue
    body = fx.Graph()
    env: dict[str, fx.Node] = {}
    weights: dict[str, GraphInput] = {}

    def weight(entry: GraphInput) -> fx.Node:
        if entry.name not in weights:
            weights[entry.name] = entry
            last = env[list(weights)[-2]] if len(weights) > 1 else body._root
            with body.inserting_after(last):
                env[entry.name] = body.placeholder(entry.name)
        return env[entry.name]

    if old is not None:
        for entry in graph.weights_of_prologue:
            weight(entry)
        copied: dict[fx.Node, fx.Node] = {n: env[n.name] for n in old.graph.nodes if n.op == "placeholder"}
        results = body.graph_copy(old.graph, copied)
        assert isinstance(results, tuple)
        env.update(zip(graph.constants_of_prologue, results, strict=True))

    moved: dict[fx.Node, fx.Node] = {}

    def copy(node: fx.Node) -> fx.Node:
        if node.op == "placeholder":
            return env[node.name] if node.name in env else weight(graph.input(node.name))
        return moved[node]

    for node in _ancestors(needed):
        if node.op != "placeholder":
            for operand in node.all_input_nodes:
                copy(operand)
            moved[node] = body.node_copy(node, copy)

    names = list(graph.constants_of_prologue)
    fresh: list[tuple[fx.Node, str]] = []
    for node in needed:
        name = f"folded_{len(names)}_{node.name}"
        names.append(name)
        env[name] = moved[node]
        fresh.append((node, name))
    body.output(tuple(env[name] for name in names))
    body.lint()
    prologue = fx.GraphModule(torch.nn.Module(), body)
    values = dict(zip(names, run_prologue(prologue, list(weights.values())), strict=True))
    moved_in_memory = [(node, name) for node, name in fresh if not lies_as(values[name], tensor_of(node))]
    if moved_in_memory:
        _lay_out(prologue, {names.index(name): tensor_of(node) for node, name in moved_in_memory})
        values = dict(zip(names, run_prologue(prologue, list(weights.values())), strict=True))

    for node, name in fresh:
        _become_constant(graph, node, name, values[name])
    alive = {entry.name for entry in graph.inputs}
    for entry in graph.inputs:
        if entry.kind == "constant" and entry.name in values and entry.tensor is None:
            entry.tensor = values[entry.name]
    graph.prologue, graph.weights_of_prologue = prologue, list(weights.values())
    graph.constants_of_prologue = names
    assert all(name in alive or name in names for name in names)


def _lay_out(prologue: fx.GraphModule, wanted: dict[int, torch.Tensor | None]) -> None:
    """Copy results of the prologue, by position, into the strides of `wanted`.

    A library may give other strides than torch's FakeTensors say. Kernels read a constant's memory by those that the
    graph has.
    """
    output = next(iter(reversed(prologue.graph.nodes)))
    results = list(output.args[0])
    for position, like in wanted.items():
        assert like is not None
        with prologue.graph.inserting_before(output):
            sizes = (list(like.shape), list(like.stride()))
            options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
            empty = prologue.graph.call_function(aten.empty_strided.default, sizes, options)
            results[position] = prologue.graph.call_function(aten.copy.default, (empty, results[position]))
    output.args = (tuple(results),)
    prologue.graph.lint()
    prologue.recompile()


def _ancestors(nodes: list[fx.Node]) -> list[fx.Node]:
    """`nodes` and everything they are computed from, in graph order."""
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return [node for node in nodes[0].graph.nodes if node in found]


def run_prologue(prologue: fx.GraphModule, weights: list[GraphInput]) -> tuple[Any, ...]:
    """The constants, computed from the weights as they are now."""
    with torch.no_grad():
        return tuple(prologue(*(entry.tensor.detach() for entry in weights if entry.tensor is not None)))


def _become_constant(graph: Graph, node: fx.Node, name: str, tensor: torch.Tensor) -> None:
    """Put a placeholder for `tensor` after the others, in the place of `node`."""
    body = graph.module.graph
    # A graph that reads no tensor has no placeholder yet: the first stands at its head.
    last = next((other for other in reversed(body.nodes) if other.op == "placeholder"), body._root)
    with body.inserting_after(last):
        placeholder = body.placeholder(name)
    placeholder.meta = {key: node.meta[key] for key in ("val", "stack_trace", "nn_module_stack") if key in node.meta}
    placeholder.meta["opaque"] = tensor.layout is not torch.strided
    node.replace_all_uses_with(placeholder)
    graph.inputs.append(GraphInput(placeholder.name, "constant", source=f"folded from {node.name}", tensor=tensor))
