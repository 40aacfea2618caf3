"""A partition becomes a `Program`. Comes in: groups and externs. Goes out: buffers with roles, steps in order, outputs.

Roles: what the caller gets is "output" (allocated anew for each call), or "extern" where torch's operator allocates it
anyway; intermediates are "arena", or "extern" likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from stages.fusion.externs import extern_of, out_variant, result_nodes, shares_storage
from stages.fusion.kernels import Built
from stages.fusion.lowering.storage import extent, tensor_of
from stages.fusion.memory import is_opaque
from stages.fusion.order import Task, order
from stages.fusion.partition import Group, Partition
from stages.fusion.units import Unit
from stages.ir.contest import Contest
from stages.ir.graph import Graph, Origin, origin_of, values_of
from stages.ir.kernel import IRError
from stages.ir.program import BufferSpec, Extern, Launch, Program, Step, TensorRef, geometry_of, prologue_of

NAMED_OPERATIONS = 4

Absorbed = Mapping[fx.Node, tuple[fx.Node, ...]]


def assemble(graph: Graph, nodes: fx.Graph, partition: Partition, absorbed: Absorbed) -> Program:
    """The program that runs `partition`, not verified yet.

    nodes      what the partition is of: the nodes of `graph`, or those of a copy with library epilogues
    absorbed   for an extern with a library epilogue, the nodes of `graph` that it computes too
    """
    return _Assembly(graph, nodes, partition, absorbed).program()


def contest(
    graph: Graph, nodes: fx.Graph, partition: Partition, absorbed: Absorbed, parts: Sequence[int], built: Built
) -> Contest:
    """The groups `parts`, in the order to run them, against the one kernel `built` of them.

    A part that is an operation of the library by itself is run as that.
    """
    assembly = _Assembly(graph, nodes, partition, absorbed)
    kinds = {entry.name: entry.kind for entry in graph.inputs}
    jobs = [partition.groups[key] for key in parts]
    made = {value for job in jobs for value in job.built.outputs}
    for value in dict.fromkeys(value for job in jobs for value in job.built.inputs):
        if value not in made:
            assembly.add_buffer(value, kinds.get(value.name, "arena"))
    alone = {key: partition.units[key] for key in parts if partition.units[key].reason}
    steps = [assembly.extern(alone[key]) if key in alone else assembly.launch(partition.groups[key]) for key in parts]
    launch = Launch(built.kernel, tuple(assembly.names[value] for value in built.values))
    return Contest(tuple(steps), launch, assembly.buffers)


class _Assembly:
    def __init__(self, graph: Graph, nodes: fx.Graph, partition: Partition, absorbed: Absorbed) -> None:
        self.graph, self.nodes, self.partition, self.absorbed = graph, nodes, partition, absorbed
        self.buffers: dict[str, BufferSpec] = {}
        self.names: dict[fx.Node, str] = {}
        self.launches = 0

    def program(self) -> Program:
        kinds = {entry.name: entry.kind for entry in self.graph.inputs}
        for node in self.nodes.nodes:
            if node.op == "placeholder" and tensor_of(node) is not None:
                self.add_buffer(node, kinds[node.name], node.name)
        steps = tuple(self.step(job) for job in self.jobs())
        output = next(iter(reversed(self.nodes.nodes)))
        outputs = tuple(self.output(value) for value in output.args[0])
        inputs = tuple(self.graph.inputs)
        # Which node of the graph each buffer holds: what a search for the first wrong step goes by.
        return Program(
            self.graph.device,
            inputs,
            self.buffers,
            steps,
            outputs,
            geometry=geometry_of(self.graph),
            prologue=prologue_of(self.graph),
            values={name: (node, *self.absorbed.get(node, ()))[-1].name for node, name in self.names.items()},
        )

    # ---- steps ----

    def jobs(self) -> list[Group | Unit]:
        """Groups and externs, in the order to run them."""
        partition = self.partition
        externs = {unit.index: unit for unit in partition.units.units if not unit.is_kernel}
        jobs: dict[int, Group | Unit] = {**partition.groups, **externs}
        jobs = {key: jobs[key] for key in sorted(jobs)}
        number = {key: position for position, key in enumerate(jobs)}
        found = [self.task(job, number) for job in jobs.values()]
        listed = list(jobs.values())
        return [listed[position] for position in order(found)]

    def task(self, job: Group | Unit, number: dict[int, int]) -> Task:
        returned = self.partition.units.returned
        if isinstance(job, Group):
            writes, reads = job.built.outputs, job.built.inputs
        else:
            writes, reads = job.values, job.reads
        before = () if isinstance(job, Group) else job.after
        after = tuple(number[index] for index in before if not self.partition.units[index].is_kernel)
        sizes = {value: self.partition.memory.nbytes(value) for value in writes}
        return Task(frozenset(reads), sizes, after, frozenset(writes) & returned)

    def step(self, job: Group | Unit) -> Step:
        return self.launch(job) if isinstance(job, Group) else self.extern(job)

    def launch(self, group: Group) -> Launch:
        units = [self.partition.units[index] for index in sorted(group.units)]
        for value in group.built.outputs:
            self.add_buffer(value, "output" if value in self.partition.units.returned else "arena")
        name = f"{kernel_name(units)}_{self.launches}"
        self.launches += 1
        kernel = replace(group.built.kernel, name=name)
        buffers = tuple(self.names[value] for value in group.built.values)
        label = ", ".join(unit.label for unit in units)
        return Launch(kernel, buffers, group.schedule, origins_of(unit.node for unit in units), label)

    def extern(self, unit: Unit) -> Extern:
        node, returned = unit.node, self.partition.units.returned
        out = out_variant(node, self.graph.device)
        ours = out is not None or shares_storage(node)
        used = result_nodes(node)
        results: list[TensorRef | None] = []
        for position, value in enumerate(values_of(node)):
            owner = used.get(position)
            if owner in unit.values:
                mine = "output" if owner in returned else "arena"
                self.add_buffer(owner, mine if ours else "extern")
                results.append(self.place(owner))
            elif out is not None:
                results.append(self.scratch(value))
            else:
                results.append(None)
        origins = origins_of((node, *self.absorbed.get(node, ())))
        step = extern_of(unit, self.place, tuple(results), out, origins)
        names = (node, *self.absorbed.get(node, ()))
        return replace(step, label=", ".join(each.name for each in names))

    # ---- buffers ----

    def add_buffer(self, value: fx.Node, role: str, name: str = "") -> str:
        dtype: torch.dtype = value.meta["val"].dtype
        return self._add(dtype, self.partition.memory.size(value), role, name, value)

    def scratch(self, value: torch.Tensor) -> TensorRef:
        """A place for a result that nobody reads but that an out-variant writes."""
        shape, strides = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
        return TensorRef(self._add(value.dtype, extent(shape, strides), "arena", "", None), shape, strides)

    def _add(self, dtype: torch.dtype, size: int, role: str, name: str, value: fx.Node | None) -> str:
        name = name or f"buf{len(self.buffers) - len(self.graph.inputs)}"
        self.buffers[name] = BufferSpec(name, dtype, size, role)
        if value is not None:
            self.names[value] = name
        return name

    def place(self, node: fx.Node) -> TensorRef:
        """Where the tensor of `node` lies."""
        base = self.partition.memory.base(node)
        if base.node not in self.names:
            raise IRError(f"fusion: {node.name} lies in {base.node.name}, which no step has made")
        if base.offset < 0:
            raise IRError(f"fusion: {node.name} reaches before the memory of {base.node.name}")
        strides = () if is_opaque(node) else base.strides
        return TensorRef(self.names[base.node], base.shape, strides, base.offset)

    def output(self, value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        return self.place(value) if tensor_of(value) is not None else value.meta.get("val")


def origins_of(nodes: Iterable[fx.Node]) -> tuple[Origin, ...]:
    """The origins of `nodes`, each once, those without a source line left out unless there is no other."""
    found = dict.fromkeys(map(origin_of, nodes))
    return tuple(origin for origin in found if origin.file) or tuple(found)


def kernel_name(units: Iterable[Unit]) -> str:
    """What a kernel does, from its operations in order: `add_layer_norm`, `mul_add_relu_and_7_more`."""
    names = list(dict.fromkeys(operation_name(unit.node) for unit in units))
    more = len(names) - NAMED_OPERATIONS
    return "_".join(names[:NAMED_OPERATIONS]) + (f"_and_{more}_more" if more > 0 else "")


def operation_name(node: fx.Node) -> str:
    """The operator of `node` as people call it: `add`, `softmax`, `layer_norm`, `batch_norm`."""
    packet = getattr(node.target, "overloadpacket", node.target)
    name = str(getattr(packet, "__name__", packet)).strip("_")
    return name.removeprefix("native_").partition("_legit")[0]
