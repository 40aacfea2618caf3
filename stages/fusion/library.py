"""Epilogues that a library computes inside an operation of its own. Comes in: a graph. Goes out: one with fewer nodes.

oneDNN's prepacked linear and convolution on a CPU (`torch.ops.mkldnn._linear_pointwise`, `._convolution_pointwise`, put
into the graph by the rewrite stage with the post-op "none") can apply an activation or add a tensor to their result
before it is written. A single reader of the result that is such an operation becomes their post-op; views in between
stay. What libraries do on CUDA is in `cuda_library.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stages.fusion.absorption import Absorption, alike, find_addend, find_reader, finish, known_tensor
from stages.fusion.cuda_library import LIBRARY_CALLS, absorb_into_call

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn

# The post-ops that give a number for NaN, where eager gives NaN; leaky_relu without a slope is a relu.
NAN_LOSING = frozenset({"relu", "hardtanh", "hardsigmoid"})
NAN_NOTE = "oneDNN's relu, hardtanh and hardsigmoid post-ops turn NaN into a number (fusion.nan_losing_epilogues)"


@dataclass(frozen=True)
class PostOp:
    """An activation as oneDNN is told of it."""

    name: str
    scalars: tuple[float, ...] = ()
    algorithm: str = ""

    @property
    def loses_nan(self) -> bool:
        return self.name in NAN_LOSING or (self.name == "leaky_relu" and self.scalars == (0.0,))


def _argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _limits(node: fx.Node) -> PostOp | None:
    """`hardtanh` or `clamp` between two numbers."""
    defaults = (-1.0, 1.0) if node.target is aten.hardtanh.default else (None, None)
    names = ("min_val", "max_val") if node.target is aten.hardtanh.default else ("min", "max")
    ends = [_argument(node, 1 + at, names[at], defaults[at]) for at in range(2)]
    return PostOp("hardtanh", tuple(map(float, ends))) if None not in ends else None


ACTIVATIONS: dict[Callable[..., Any], Callable[[fx.Node], PostOp | None]] = {
    aten.relu.default: lambda node: PostOp("relu"),
    aten.sigmoid.default: lambda node: PostOp("sigmoid"),
    aten.tanh.default: lambda node: PostOp("tanh"),
    aten.silu.default: lambda node: PostOp("swish"),
    aten.hardswish.default: lambda node: PostOp("hardswish"),
    aten.hardsigmoid.default: lambda node: PostOp("hardsigmoid"),
    aten.gelu.default: lambda node: PostOp("gelu", (), str(_argument(node, 1, "approximate", "none"))),
    aten.leaky_relu.default: lambda node: PostOp("leaky_relu", (float(_argument(node, 1, "negative_slope", 0.01)),)),
    aten.hardtanh.default: _limits,
    aten.clamp.default: _limits,
}


@dataclass(frozen=True)
class Library:
    """An operation with post-ops. `post_at` is where its arguments for them begin; the data come first of all."""

    name: str
    plain: Callable[..., Any]
    binary: Callable[..., Any]
    post_at: int


def _libraries() -> list[Library]:
    """What this build of torch has; a build without oneDNN has neither."""
    found = []
    for name, post_at in (("linear", 3), ("convolution", 7)):
        packet = getattr(mkldnn, f"_{name}_pointwise", None)
        if packet is not None:
            found.append(Library(name, packet.default, packet.binary, post_at))
    return found


LIBRARIES = {library.plain: library for library in _libraries()}


def absorb(module: fx.GraphModule, names: Sequence[str], device: torch.device, nan_losing: bool = False) -> Absorption:
    """The graph of `module` with the epilogues of `names` (`config.LIBRARY_EPILOGUES`) left to the library.

    nan_losing   also those that give a number for NaN

    `module` is left as it is: where there is something to do, a copy of its graph is worked on.
    """
    operations = LIBRARY_CALLS if device.type == "cuda" else LIBRARIES
    if not names or not any(node.target in operations for node in module.graph.nodes):
        return Absorption(module.graph)
    copy = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    result = copy.graph_copy(module.graph, copied)
    old_output = next(iter(reversed(module.graph.nodes)))
    copy.output(result).meta = dict(old_output.meta)
    made = Absorption(fx.GraphModule(module, copy).graph, nan_losing)
    for node in list(made.nodes.nodes):
        if node.target in operations and device.type == "cuda":
            absorb_into_call(node, names, made)
        elif node.target in operations:
            _absorb_into(node, LIBRARIES[node.target], names, made)
    made.nodes.lint()
    return made


def _absorb_into(node: fx.Node, library: Library, names: Sequence[str], made: Absorption) -> None:
    post_ops = node.args[library.post_at]
    reader = find_reader(node)
    if post_ops != "none" or reader is None:
        return
    chain, last = reader
    post_op = _post_op(last)
    keeps_nan = post_op is not None and (made.nan_losing or not post_op.loses_nan)
    if post_op is not None and keeps_nan and f"{library.name}_unary" in names and alike(chain[-1], last):
        _set_post_op(node, library, post_op, made)
        finish(chain, last, f"{library.name}_unary", made)
        return
    other = find_addend(chain[-1], last)
    if other is None or f"{library.name}_add" not in names:
        return
    if len(chain) > 1 and not (known_tensor(node).is_contiguous() and known_tensor(other).is_contiguous()):
        return
    joined = _make_binary(node, library, chain, other, last, made)
    finish(joined, last, f"{library.name}_add", made)
    _absorb_relu(joined, names, made)


def _absorb_relu(chain: list[fx.Node], names: Sequence[str], made: Absorption) -> None:
    """A relu after convolution and add."""
    node = chain[0]
    reader = find_reader(node)
    if not made.nan_losing or "convolution_add_relu" not in names or len(node.args) < 12 or reader is None:
        return
    views, last = reader
    if last.target is aten.relu.default and alike(views[-1], last):
        node.args = (*node.args[:10], "relu", *node.args[11:])
        made.notes = [NAN_NOTE]
        finish(views, last, "convolution_add_relu", made)


def _post_op(node: fx.Node) -> PostOp | None:
    make = ACTIVATIONS.get(node.target)  # type: ignore[arg-type]
    return None if make is None else make(node)


def _set_post_op(node: fx.Node, library: Library, post_op: PostOp, made: Absorption) -> None:
    post = (post_op.name, list(post_op.scalars), post_op.algorithm)
    node.args = (*node.args[: library.post_at], *post)
    if post_op.loses_nan:
        made.notes = [NAN_NOTE]


def _make_binary(
    node: fx.Node, library: Library, chain: list[fx.Node], other: fx.Node, add: fx.Node, made: Absorption
) -> list[fx.Node]:
    """`node` plus `other`, placed where `add` is (so that `other` is there), and after it the reshapes of `chain`."""
    data, *rest = node.args[: library.post_at]
    post: tuple[Any, ...] = ("add",) if library.name == "linear" else ("add", None, None, [], None)
    with made.nodes.inserting_before(add):
        if len(chain) > 1:
            shape = list(known_tensor(node).shape)
            addend = made.nodes.call_function(aten.view.default, (other, shape))
            addend.meta = {**other.meta, "val": known_tensor(other).view(shape)}
            other = addend
        joined = [made.nodes.call_function(library.binary, (data, other, *rest, *post))]
        joined[0].meta = dict(node.meta)
        for view in chain[1:]:
            moved = made.nodes.call_function(view.target, (joined[-1], *view.args[1:]))  # type: ignore[arg-type]
            moved.meta = dict(view.meta)
            joined.append(moved)
    return joined
