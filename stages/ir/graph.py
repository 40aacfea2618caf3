"""Level 1: a `Graph` is functional ATen in FX, with what each placeholder is and the user's source line of each node.

The placeholders of `module` are, in this order, the entries of `inputs`. Three kinds: "user" (a tensor given at each
call), "weight" (a parameter or buffer of the model; read, or updated in place through a mutation output) and
"constant" (a tensor computed once from weights by `prologue`, or a literal of the graph). Each node carries in `meta`:
`val`, a FakeTensor (or a tuple, or a number) with dtype, shape and strides; and what Dynamo and AOTAutograd put there
(`stack_trace`, `nn_module_stack`), read by `origin_of`. The output node returns one flat tuple; AOTAutograd's wrapper
(or the flat caller that mirrors it) writes mutations back, makes output aliases, and rebuilds the user's structure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from stages.ir.kernel import IRError


@dataclass(frozen=True)
class Origin:
    """Where an operation comes from: the user's `file`, `line` and `code`, and the `module` path inside the model."""

    file: str = ""
    line: int = 0
    code: str = ""
    module: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "(no source line)"


@dataclass
class GraphInput:
    """One placeholder. `tensor` holds the value of a weight or constant; `source` is the path users know it by."""

    name: str
    kind: str
    source: str = ""
    tensor: torch.Tensor | None = None


@dataclass
class Graph:
    """A captured computation.

    prologue   how constants come from weights: a module whose placeholders are named as weights are in
               `weights_of_prologue` and that returns the tuple of tensors of `constants_of_prologue`, in order. Run
               again, it brings the constants up to date after a weight changed.
    assumed    predicates over constants on which a rewrite relied ("the mask is all true"): name -> check(constants)
    training   True where gradients flow through: weights are then never frozen
    notes      what stages have to say to the user (breaks, emulated arithmetic, rewrites applied), in order
    """

    module: fx.GraphModule
    inputs: list[GraphInput]
    device: torch.device
    prologue: fx.GraphModule | None = None
    weights_of_prologue: list[GraphInput] = field(default_factory=list)
    constants_of_prologue: list[str] = field(default_factory=list)
    assumed: dict[str, Callable[[dict[str, torch.Tensor]], bool]] = field(default_factory=dict)
    training: bool = False
    notes: list[str] = field(default_factory=list)

    def input(self, name: str) -> GraphInput:
        return next(entry for entry in self.inputs if entry.name == name)

    def text(self) -> str:
        """The graph as Python source with types and source lines."""
        return str(self.module.print_readable(print_output=False))


_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n\s*(?P<code>[^\n]*)')


def origin_of(node: fx.Node) -> Origin:
    """The innermost frame of the user's code that made `node`, and its module path."""
    stack = node.meta.get("nn_module_stack") or {}
    path = readable_path(str(next(reversed(stack.values()))[0]), of_model=True) if stack else ""
    return replace(origin_of_trace(node.meta.get("stack_trace") or ""), module=path)


def origin_of_trace(trace: str) -> Origin:
    """The innermost frame outside torch of a traceback in Python's format; an empty `Origin` if there is none."""
    frames = [frame for frame in _FRAME.findall(trace) if not frame[0].startswith(_TORCH)]
    file, line, code = frames[-1] if frames else ("", "0", "")
    return Origin(file, int(line), code)


_ACCESS = re.compile(r"^[LG]\['([^']*)'\]|\['([^']*)'\]|\[(-?\d+)\]|\.(\w+)")
_TABLES = ("_modules", "_parameters", "_buffers")


def readable_path(source: str, of_model: bool) -> str:
    """Dynamo's path to a value as users write it.

    `L['self']._modules['encoder']._parameters['weight']` is `encoder.weight`, `L['kwargs']['ids']` is `ids`,
    `L['batch']['ids']` is `batch.ids`. With `of_model`, or where the path goes through a module's tables, the name of
    the model itself (`self`, or `args[0]` of a wrapper) is left out.
    """
    parts = [next(filter(None, groups), "") for groups in _ACCESS.findall(source)]
    if of_model or any(part in _TABLES for part in parts):
        parts = parts[2:] if parts[:2] == ["args", "0"] else parts[1:]
    elif parts[:1] == ["kwargs"]:
        parts = parts[1:]
    return ".".join(part for part in parts if part not in _TABLES and part != "__dict__")


def verify(graph: Graph) -> None:
    """Raise `IRError` unless `graph` keeps the rules of this file."""
    placeholders = [node.name for node in graph.module.graph.nodes if node.op == "placeholder"]
    if placeholders != [entry.name for entry in graph.inputs]:
        raise IRError(f"graph: placeholders {placeholders[:8]} are not its inputs in order")
    for entry in graph.inputs:
        if entry.kind not in ("user", "weight", "constant"):
            raise IRError(f"graph: input '{entry.name}' is of unknown kind '{entry.kind}'")
        if entry.kind != "user" and entry.tensor is None:
            raise IRError(f"graph: {entry.kind} '{entry.name}' has no tensor")
    for node in graph.module.graph.nodes:
        if node.op not in ("placeholder", "output", "get_attr", "call_function"):
            raise IRError(f"graph: node '{node.name}' is a {node.op}; only calls of functions are functional ATen")
        if node.op in ("placeholder", "call_function") and "val" not in node.meta:
            raise IRError(f"graph: node '{node.name}' has no value meta")
    nodes = {node.name: node for node in graph.module.graph.nodes if node.op == "placeholder"}
    for entry in graph.inputs:
        if entry.kind == "constant" and not lies_as(entry.tensor, nodes[entry.name].meta["val"]):
            raise IRError(f"graph: constant '{entry.name}' lies in memory otherwise than its value meta says")
    graph.module.graph.lint()


def lies_as(tensor: Any, value: Any) -> bool:
    """Whether the strides of `tensor` cannot be told from those of its fake `value`, or it has none (an opaque layout).

    Strides of dimensions of one element reach nothing.
    """
    if not isinstance(tensor, torch.Tensor) or not isinstance(value, torch.Tensor) or 0 in value.shape:
        return True
    if tensor.layout is not torch.strided or value.layout is not torch.strided:
        return True
    strides = zip(value.shape, value.stride(), tensor.stride())
    return all(mine == theirs for size, mine, theirs in strides if size > 1)


def values_of(node: fx.Node) -> tuple[Any, ...]:
    """`meta['val']` as a tuple, whether the node gives one value or several."""
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
