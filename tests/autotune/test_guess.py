"""Contests where nothing is timed: the cost model gives products to one kernel only where that saves something."""

from __future__ import annotations

import pytest
import torch

from pipeline.compose import compose
from pipeline.configure import configuration
from stages.autotune.guess import guess
from stages.autotune.products import GpuFacts
from stages.fusion import run
from stages.ir.matmul import matmul_of
from stages.ir.program import Extern, Launch
from stages.ir.schedule import Schedule
from tests.fusion.helpers import config, graph_of
from tests.rewrite.cuda import rewritten
from tests.rewrite.test_rewrite import Function

OFF = configuration(compose(["autotune=off"]), [])[0].autotune


def program_of(function, *shapes, dtype=torch.bfloat16):
    """The program of `function` with templates decided by the cost model of an H200."""
    return decided(graph_of(function, *(torch.zeros(shape, dtype=dtype) for shape in shapes)))


def decided(graph):
    template = {"name": "t", "operators": ["mm", "addmm"], "types": ["bfloat16", "float32"], "devices": ["cpu"]}
    fusion = config(
        templates=[{**template, "producers": ["pointwise"], "consumers": ["pointwise"]}], library_epilogues=[]
    )
    return run(graph, fusion, lambda contests: guess(contests, OFF, torch.device("cpu"), GPU))


GPU = GpuFacts()


def relu_of_sum(a, b, c):
    return torch.relu(a @ b + c)


@pytest.mark.parametrize("c", [(1024, 1024), (1024,)], ids=["matrix", "row"])
@pytest.mark.parametrize("size", [64, 1024])
def test_what_surrounds_a_product_of_half_types_goes_with_it(c, size):
    program = program_of(relu_of_sum, (size, 1024), (1024, 1024), c if size == 1024 else (1024,))
    (launch,) = program.steps
    assert isinstance(launch, Launch) and matmul_of(launch.kernel) is not None
    assert launch.schedule is not None and launch.schedule.tile_m


@pytest.mark.parametrize("c", [(128, 128), (128,)], ids=["matrix", "row"])
def test_a_small_product_of_float32_does(c):
    (launch,) = program_of(relu_of_sum, (128, 128), (128, 128), c, dtype=torch.float32).steps
    assert isinstance(launch, Launch) and matmul_of(launch.kernel) is not None


@pytest.mark.parametrize("activation", [torch.relu, torch.nn.functional.gelu, lambda y: y])
def test_so_does_a_small_linear_layer_whose_bias_was_peeled(activation):
    module, x = Function(lambda self, x: activation(self.linear(x))), torch.zeros(128, 128)
    module.linear = torch.nn.Linear(128, 128)
    graph = rewritten(module, x)
    assert any(note.startswith("peel_linear_bias") for note in graph.notes)
    graph.device = x.device
    (launch,) = decided(graph).steps
    assert isinstance(launch, Launch) and matmul_of(launch.kernel) is not None


def test_a_large_product_of_float32_is_better_left_to_the_library():
    library, rest = program_of(relu_of_sum, (1024, 1024), (1024, 1024), (1024, 1024), dtype=torch.float32).steps
    assert isinstance(library, Extern) and isinstance(rest, Launch)


def test_a_product_with_nothing_around_it_is_left_to_the_library_which_says_why():
    program = program_of(torch.mm, (1024, 1024), (1024, 1024))
    assert isinstance(program.steps[0], Extern)
    assert any("in one step, and nothing is timed" in decision.reason for decision in program.decisions)


def test_float32_takes_tiles_whose_code_stays_short():
    """A step of a program has tile_m * tile_n * tile_k / threads products written out, in float32."""
    (launch,) = program_of(relu_of_sum, (128, 128), (128, 128), (128, 128), dtype=torch.float32).steps
    schedule: Schedule = launch.schedule
    assert schedule.tile_m * schedule.tile_n * schedule.tile_k // (32 * schedule.num_warps) <= 1024
