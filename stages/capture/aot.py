"""A Dynamo graph and its example inputs become functional ATen graphs, each handed to a compiler.

Comes in: the `GraphModule` that Dynamo gives a backend, its example inputs, and `compile_graph`, which makes of a
`Graph` something to call with the list of its "user" and "weight" tensors. Goes out: a callable with the module's own
calling convention, and AOTAutograd's metadata about mutations and aliases.

Without gradients there is one graph, in which parameters and buffers are "weight" inputs, so that later stages may
freeze them; one that the graph itself updates is "user", since its value is another at the next call. With gradients
there are two, forward and backward, split by the min-cut partitioner, and every input is "user".
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import _disable_current_modes

from stages.capture import decompositions
from stages.capture.boxed import boxed
from stages.capture.clean import clean
from stages.capture.effects import drop_tokens
from stages.capture.generator_state import place_generator_state
from stages.capture.overlap import overlaps_itself, refused_write
from stages.capture.restrided import loses_its_place, reaches_outside
from stages.capture.strides import keep_strides, returned_by
from stages.capture.true_strides import true_strides
from stages.ir.graph import Graph, GraphInput, Origin, origin_of, origin_of_trace, readable_path, values_of, verify

CompileGraph = Callable[[Graph], Callable[[list[Any]], Sequence[Any]]]


@dataclass(frozen=True)
class Argument:
    """One argument of Dynamo's graph: the path users know it by, and whether it belongs to the model; then its value.

    Dynamo calls "static" what hangs on a module: parameters, buffers, and tensors that are plain attributes.
    """

    source: str
    value: Any
    static: bool


_ARGUMENTS = frozenset({"is_input", "alias_of_input"})
_AS_THEY_ARE = frozenset({"non_alias", "unsafe_view_alias", "custom_function_view"})


@dataclass
class AotResult:
    """`call(*arguments)` runs the compiled graph as the Dynamo module ran.

    metadata   AOTAutograd's `ViewAndMutationMeta`: which inputs are mutated and which outputs alias what; None where
               AOTAutograd did not run, and any input may be mutated
    training   whether a backward graph exists
    """

    call: Callable[..., Any]
    metadata: Any
    training: bool

    def mutated(self, count: int) -> list[int]:
        """The positions, among the `count` arguments of `call`, of tensors that it writes to."""
        if self.metadata is None:
            return list(range(count))
        held = len(self.metadata.input_info) - count
        return sorted(position - held for position in mutated_inputs(self.metadata) if position >= held)

    @property
    def is_plain(self) -> bool:
        """Whether the graph's outputs are the call's outputs as they are: nothing mutated, no alias to make.

        The names are those of AOTAutograd's `OutputType`. An `unsafe_view_alias` is the view of a value that nothing
        else holds, which is returned as it is.
        """
        return (
            self.metadata is not None
            and not self.training
            and not mutated_inputs(self.metadata)
            and not getattr(self.metadata, "tokens", None)
            and self.metadata.num_intermediate_bases == 0
            and self.metadata.grad_enabled_mutation is None
            and all(info.output_type.name in _AS_THEY_ARE for info in self.metadata.output_info)
        )


def compile_aot(module: fx.GraphModule, example_inputs: Sequence[Any], compile_graph: CompileGraph) -> AotResult:
    """Trace `module` with AOTAutograd and compile its graphs.

    Called inside Dynamo's compilation, or outside of it within `static_tracing()`. Every example input is a tensor.
    Raises `LeftToEager`, and what tracing or `compile_graph` raises.
    """
    _refuse(refused_write(module), "a write to memory that overlaps itself or what is read")
    _refuse(loses_its_place(module), "as_strided of memory that the graph writes to")
    known = arguments_of(module, example_inputs)
    returned = returned_by(module)
    found: dict[str, Any] = {"metadata": None, "training": False}

    def compiler(
        training: bool, forward: bool
    ) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[[list[Any]], Any]]:
        def compile_one(aot_module: fx.GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], Any]:
            if forward:
                found["metadata"] = TracingContext.get().fw_metadata
                found["training"] = training
                _refuse_overlapping_writes(found["metadata"], known, example_inputs)
                if not training:
                    _keep_strides(aot_module, found["metadata"], returned)
            with _real_tensors():
                graph = build_graph(aot_module, known if forward else [], mutated_inputs(found["metadata"]), training)
                return boxed(compile_graph(graph))

        return compile_one

    backend = aot_autograd(
        fw_compiler=compiler(training=True, forward=True),
        bw_compiler=compiler(training=True, forward=False),
        inference_compiler=compiler(training=False, forward=True),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions.table(),
    )
    with decompositions.kept_whole(), true_strides(), _named_if_not_static():
        try:
            call = backend(module, list(example_inputs))
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise
        except Exception as error:
            if found["metadata"] is None:  # no graph was handed over, so it is not our compiler that failed
                raise _failure(error) from error
            raise
    result = AotResult(call, found["metadata"], found["training"])
    written = result.mutated(len(example_inputs))
    if written:
        places = _sharing(example_inputs)
        passed_on = any(info.output_type.name in _ARGUMENTS for info in result.metadata.output_info)
        if passed_on and any(places.count(places[position]) > 1 for position in written):
            # AOTAutograd makes one argument of them, and results that are arguments are then other objects.
            raise NotTraced("arguments that share memory, one of which it writes to")
        result.call = _watching_memory(call, module, example_inputs)
    return result


def _refuse(node: fx.Node | None, what: str) -> None:
    """Raise `NotTraced` if there is such a node."""
    if node is not None:
        origin = origin_of(node)
        raise NotTraced(f"{what}, at {origin}: {origin.code}")


def _watching_memory(
    call: Callable[..., Any], module: fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """`call`, which writes to arguments, where the same ones share memory as did when it was traced; else eager.

    AOTAutograd traces what the examples share, and nobody guards it: what is written to one argument may be read
    through another.
    """
    traced = _sharing(example_inputs)

    def watched(*arguments: Any) -> Any:
        if _sharing(arguments) == traced:
            return call(*arguments)
        warn_of_eager(
            NotTraced("arguments that share memory otherwise than when it was traced, one of which it writes to")
        )
        return module.forward(*arguments)

    return watched


def _sharing(arguments: Sequence[Any]) -> list[int]:
    """For each argument the position of the first that lies in the same memory."""
    first: dict[int, int] = {}
    return [
        first.setdefault(value.untyped_storage()._cdata, position)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
        else position
        for position, value in enumerate(arguments)
    ]


def in_eager(module: fx.GraphModule) -> AotResult:
    """`module` run as Dynamo captured it."""
    return AotResult(module.forward, None, False)


class LeftToEager(Exception):
    """A graph that eager alone runs right: it is run as Dynamo captured it. The message is what it has, as a noun."""


def warn_of_eager(error: LeftToEager) -> None:
    """Tell the user that a graph is not compiled, and the line that is the cause."""
    warnings.warn(f"torchweld runs a graph in eager, since it has {error}", stacklevel=2)


class NotStatic(LeftToEager):
    """A size or number of the graph is known only when it runs; `origin` is where it comes from."""

    def __init__(self, origin: Origin) -> None:
        super().__init__(f"a size or number that is known only at run time, at {origin}: {origin.code}")
        self.origin = origin


class NotTraced(LeftToEager):
    """A graph that Dynamo made and that is left to eager: AOTAutograd fails on it, or gives it another meaning."""


def _failure(error: Exception) -> NotTraced:
    lines = str(error).strip().splitlines() or [""]
    return NotTraced(f"an operation that AOTAutograd does not trace ({type(error).__name__}: {lines[0]})")


@contextlib.contextmanager
def _named_if_not_static() -> Iterator[None]:
    """Tracing with numbers for sizes stops where it meets a value that depends on data; that becomes `NotStatic`."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise NotStatic(origin_of_trace(str(error))) from error


def _refuse_overlapping_writes(metadata: Any, arguments: Sequence[Argument], example_inputs: Sequence[Any]) -> None:
    """Raise `LeftToEager` where the graph writes to an input of which several elements are one place in memory.

    Some operators of eager allow that (`masked_fill_` on an expanded tensor); AOTAutograd computes the new value and
    copies it into the input, which torch refuses.
    """
    held = len(arguments) - len(example_inputs)
    for position, info in enumerate(getattr(metadata, "input_info", ())):
        tensor = example_inputs[position - held] if held <= position < len(arguments) else None
        if not (info.mutates_data and isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided):
            continue
        if overlaps_itself(tensor):
            raise LeftToEager(f"a write to '{arguments[position].source}', whose elements share memory")


def _keep_strides(aot_module: fx.GraphModule, metadata: Any, returned: Sequence[Any]) -> None:
    """Give the outputs of an inference graph the strides of `returned`; those that AOTAutograd makes views of are not.

    A graph returns the new values of mutated inputs first.
    """
    infos = metadata.output_info
    if len(infos) == len(returned):
        own = [value if info.output_type.name in _AS_THEY_ARE else None for info, value in zip(infos, returned)]
        keep_strides(aot_module, len(metadata.mutated_inp_runtime_indices), own)


@contextlib.contextmanager
def _real_tensors() -> Iterator[None]:
    """Out of the modes of tracing (fake tensors, autocast, gradients), so that a compiler can compute with weights."""
    with _disable_current_modes(), torch._C._DisableAutocast(), torch.no_grad():
        yield


@contextlib.contextmanager
def static_tracing() -> Iterator[None]:
    """A tracing context of its own, outside Dynamo's, in which every size is a number."""
    from torch._guards import tracing

    with tracing(TracingContext(FakeTensorMode(static_shapes=True))):
        yield


def build_graph(module: fx.GraphModule, known: Sequence[Argument], mutated: frozenset[int], training: bool) -> Graph:
    """The `Graph` of an AOTAutograd module; `known` are the arguments of Dynamo's module, by position.

    `mutated` are the positions of arguments whose new value the graph returns. Raises `LeftToEager`.
    """
    drop_tokens(module.graph)
    module.graph.eliminate_dead_code()
    place_generator_state(module, training)
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.meta.setdefault("val", None)  # torch gives none to what returns nothing, such as an assertion
        if any(map(_is_symbolic, values_of(node))):
            raise NotStatic(origin_of(node))
        if reaches_outside(node):
            raise LeftToEager(f"as_strided at {origin_of(node)}, which reaches memory around an input")
    constants = clean(module, distinct=not training)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    inputs = []
    for position, node in enumerate(placeholders):
        if node.name in constants:
            inputs.append(GraphInput(node.name, "constant", node.name, constants[node.name]))
            continue
        index = _position_of(node, position, len(placeholders) - len(constants), len(known))
        argument = known[index] if index is not None else None
        if argument is not None and argument.static and not training and index not in mutated:
            inputs.append(GraphInput(node.name, "weight", argument.source, argument.value))
        else:
            inputs.append(GraphInput(node.name, "user", argument.source if argument else node.name))
    if not training and _returns_bytes_twice(module):
        raise NotTraced("results of different types in one memory")
    graph = Graph(module, inputs, _device_of(module), training=training)
    verify(graph)
    return graph


def _returns_bytes_twice(module: fx.GraphModule) -> bool:
    """Whether two results that the graph computes are one memory seen as two types: a program has one type for it."""
    output = next(iter(reversed(module.graph.nodes)))
    types: dict[int, torch.dtype] = {}
    for node in output.all_input_nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.Tensor) and value.layout is torch.strided:
            storage = value.untyped_storage()._cdata
            if types.setdefault(storage, value.dtype) != value.dtype:
                return True
    return False


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def arguments_of(module: fx.GraphModule, example_inputs: Sequence[Any]) -> list[Argument]:
    """What AOTAutograd passes to the traced module, in order: tensors that the module itself holds, then its inputs."""
    names = module.meta.get("dynamo_flat_name_to_original_fqn", {})
    held = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    arguments = [Argument(names.get(name, name), tensor, static=True) for name, tensor in held.items()]
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, example_inputs, strict=True):
        static = bool(node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))
        arguments.append(Argument(_readable(node), value if static else None, static))
    return arguments


def _readable(node: fx.Node) -> str:
    """The path users know a graph argument by: `encoder.layer.0.weight`, `batch.ids`, `x`."""
    source = getattr(node, "_dynamo_source", None)
    if source is None:
        return str(node.name)
    name = source.name() if callable(source.name) else source.name
    return readable_path(name, of_model=False) or str(node.name)


def _position_of(node: fx.Node, position: int, count: int, known: int) -> int | None:
    """Which argument of Dynamo's module the placeholder is; None where AOTAutograd made it (saved tensors, bases)."""
    if count == known:
        return position
    index = getattr(node.meta.get("desc"), "idx", None)
    return index if isinstance(index, int) and index < known else None


def mutated_inputs(metadata: Any) -> frozenset[int]:
    """The positions of the traced module's arguments whose data or layout the graph changes."""
    infos = getattr(metadata, "input_info", ())
    return frozenset(index for index, info in enumerate(infos) if info.mutates_data or info.mutates_metadata)


def _device_of(module: fx.GraphModule) -> torch.device:
    """The accelerator if any value lies on one (CPU scalars may be mixed in), else the CPU."""
    devices = {
        value.device: None
        for node in module.graph.nodes
        for value in values_of(node)
        if isinstance(value, torch.Tensor)
    }
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
