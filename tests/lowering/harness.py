"""Trace a function to ATen, run it as kernels through the interpreter, and compare with eager.

Two ways: one kernel an operator (every lowering on its own), and everything in one kernel (composition).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from stages.fusion.lowering import Kind, base_of, build_kernel, extent, kind_of, why_not
from stages.fusion.lowering.storage import tensor_of
from stages.ir.interpret import interpret_flat
from stages.ir.kernel import Kernel


def trace(function: Callable[..., Any], inputs: Sequence[Tensor]) -> fx.Graph:
    """Functional ATen with FakeTensors, as a captured graph has them."""
    with torch.no_grad():
        functional = functionalize(lambda *args: tree_leaves(function(*args)), remove="mutations")
        module = make_fx(functional, tracing_mode="fake")(*inputs)
    module.graph.eliminate_dead_code()
    return module.graph


def flat(tensor: Tensor) -> Tensor:
    """The memory that `tensor` reaches, from its first element on."""
    return tensor.as_strided((extent(tensor.shape, tensor.stride()),), (1,))


class Run:
    """The memory of one evaluation: a flat tensor for each node that owns storage."""

    def __init__(self, graph: fx.Graph, inputs: Sequence[Tensor], in_double: bool = False) -> None:
        self.graph, self.in_double = graph, in_double
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.memory = {node: flat(tensor) for node, tensor in zip(placeholders, inputs, strict=True)}
        for node in graph.nodes:
            if node.op == "get_attr":
                self.memory[node] = flat(tensor_of(node))
        self.results = tree_leaves(next(node for node in graph.nodes if node.op == "output").args[0])

    def launch(self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], **options: bool) -> Kernel:
        kernel, behind = build_kernel(nodes, outputs, "k", **options)
        for node in outputs:
            fake = tensor_of(node)
            self.memory[node] = torch.zeros(extent(fake.shape, fake.stride()), dtype=fake.dtype)
        interpret_flat(kernel, [self.memory[node] for node in behind], self.in_double)
        return kernel

    def tensors(self) -> list[Tensor]:
        found = []
        for node in self.results:
            base = base_of(node)
            found.append(self.memory[base.node].as_strided(base.shape, base.strides, base.offset))
        return found


def calls(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def one_by_one(function: Callable[..., Any], inputs: Sequence[Tensor], in_double: bool = False) -> list[Tensor]:
    """Each operator a kernel of its own."""
    graph = trace(function, inputs)
    run = Run(graph, inputs, in_double)
    for node in calls(graph):
        kind = kind_of(node)
        assert kind is not Kind.EXTERN, f"{node.format_node()}: {why_not(node)}"
        if kind is Kind.VIEW or node.target is operator.getitem:
            continue
        parts = [user for user in node.users if user.target is operator.getitem]
        run.launch([node, *parts], parts or [node])
    return run.tensors()


def together(
    function: Callable[..., Any], inputs: Sequence[Tensor], in_double: bool = False, **options: bool
) -> tuple[list[Tensor], Kernel]:
    """The whole function as one kernel."""
    graph = trace(function, inputs)
    run = Run(graph, inputs, in_double)
    outputs = dict.fromkeys(base_of(node).node for node in run.results)
    kernel = run.launch(calls(graph), [node for node in outputs if node.op == "call_function"], **options)
    return run.tensors(), kernel


def in_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def check(
    ours: Sequence[Tensor],
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    exact: bool = False,
    layout: bool = True,
    cancels: bool = False,
) -> None:
    """Values within twice eager's own error against float64 and a few roundings; dtype, layout and NaNs equal.

    exact     values equal to the last bit
    layout    False where torch's own FakeTensors promise other strides than eager then gives
    cancels   results are differences of sums: a rounding of the largest input is allowed on top
    """
    with torch.no_grad():
        eager = tree_leaves(function(*inputs))
        wide = None if exact else tree_leaves(function(*map(in_double, inputs)))
    scale = (
        max((float(x[x.isfinite()].abs().max()) for x in inputs if x.is_floating_point()), default=0.0)
        if cancels
        else 0.0
    )
    assert len(ours) == len(eager)
    for position, (mine, theirs) in enumerate(zip(ours, eager, strict=True)):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert _steps(mine) == _steps(theirs) or not layout
        if exact or not theirs.is_floating_point():
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
            continue
        reference = wide[position].double()
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.isinf(), theirs.isinf())
        usual = theirs.isfinite()
        error = (mine.double() - reference)[usual].abs()
        allowed = 2 * (theirs.double() - reference)[usual].abs()
        floor = torch.finfo(mine.dtype).eps * (4 * reference[usual].abs() + scale)
        assert (error <= allowed.max().nan_to_num() + floor if error.numel() else torch.tensor(True)).all(), (
            f"result {position}: off by {error.max()}, eager by {allowed.max() / 2}"
        )


def check_all(functions: dict[str, Callable[..., Any]], inputs: Sequence[Tensor], cancels: Sequence[str] = ()) -> None:
    """`check` of each function, one kernel an operator, traced together (a trace costs far more than a kernel)."""
    pieces = one_by_one(lambda *args: [tree_leaves(function(*args)) for function in functions.values()], inputs)
    wrong = []
    for name, function in functions.items():
        count = len(tree_leaves(function(*inputs)))
        ours, pieces = pieces[:count], pieces[count:]
        try:
            check(ours, function, inputs, cancels=name in cancels)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)
    assert not pieces


def _steps(tensor: Tensor) -> list[int]:
    """The strides that matter: of dimensions with more than one position."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
