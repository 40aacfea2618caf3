"""Graph -> Program: which operations become one kernel, and which are left to torch.

`lowering/` says what an operator computes; everything else here decides by the rules of `conf/fusion/*.yaml`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from stages.fusion.absorption import Absorption
from stages.fusion.config import FusionConfig
from stages.fusion.cost import program_traffic
from stages.fusion.groups import group
from stages.fusion.kernels import Kernels
from stages.fusion.library import absorb
from stages.fusion.memory import Memory
from stages.fusion.partition import Partition
from stages.fusion.program import assemble, contest
from stages.fusion.templates import use_templates
from stages.fusion.units import Units, units_of
from stages.ir.contest import Judge
from stages.ir.graph import Graph
from stages.ir.program import Program, verify

__all__ = ["FusionConfig", "run"]


def run(graph: Graph, config: FusionConfig, judge: Judge | None = None) -> Program:
    """The program of `graph` as `config` wants it fused, verified, with `decisions`, `notes` and `traffic_unfused`.

    judge   times the templates of `config` against the library; None: no template is tried

    `graph` is left as it is. Raises `UserError` where the graph holds a number that only a run can tell.
    """
    memory = Memory()
    kernels = Kernels(memory, config.emulate_precision_casts)
    nodes = graph.module.graph
    made = absorb(graph.module, config.library_epilogues, graph.device, config.nan_losing_epilogues)
    units = units_of(nodes, graph.device, memory)
    unfused = _fuse(graph, Absorption(nodes), units, replace(config, rules=[]), kernels, None)
    units = units if made.nodes is nodes else units_of(made.nodes, graph.device, memory)
    program = replace(_fuse(graph, made, units, config, kernels, judge), traffic_unfused=program_traffic(unfused))
    verify(program)
    return program


def _fuse(
    graph: Graph, made: Absorption, units: Units, config: FusionConfig, kernels: Kernels, judge: Judge | None
) -> Program:
    partition = Partition(units, kernels, config)
    decisions = group(partition)
    if judge is not None:
        make = partial(contest, graph, made.nodes, partition, made.absorbed)
        decisions += use_templates(partition, graph.device.type, make, judge)
    program = assemble(graph, made.nodes, partition, made.absorbed)
    return replace(program, decisions=(*made.decisions, *decisions), notes=(*graph.notes, *made.notes))
