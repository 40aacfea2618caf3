"""What a program says of its inputs and constants."""

import torch
from torch import fx

from stages.ir.graph import Graph, GraphInput
from stages.ir.program import Geometry, Program, geometry_of, prologue_of


def graph_of_two() -> tuple[Graph, torch.Tensor]:
    """x (a transposed view) and a weight, and a constant that a prologue makes."""
    graph = fx.Graph()
    weight = torch.ones(4)
    values = {"x": torch.zeros(3, 2).t(), "w": weight, "c": weight * 2}
    for name, value in values.items():
        graph.placeholder(name).meta["val"] = value
    graph.output(())
    prologue = fx.symbolic_trace(lambda w: (w * 2,))
    inputs = [
        GraphInput("x", "user"),
        GraphInput("w", "weight", "w", weight),
        GraphInput("c", "constant", "", weight * 2),
    ]
    made = Graph(
        fx.GraphModule({}, graph),
        inputs,
        torch.device("cpu"),
        prologue,
        [inputs[1]],
        ["c"],
        {"positive": lambda constants: bool((constants["c"] > 0).all())},
    )
    return made, weight


def test_a_program_keeps_geometry_and_prologue():
    graph, weight = graph_of_two()
    facts = {"geometry": geometry_of(graph), "prologue": prologue_of(graph)}
    program = Program(graph.device, tuple(graph.inputs), {}, (), (), **facts)
    cpu = torch.device("cpu")
    assert program.geometry == {
        "x": Geometry((2, 3), (1, 2), torch.float32, cpu),
        "w": Geometry((4,), (1,), torch.float32, cpu),
    }
    assert str(program.geometry["x"]) == "float32[2, 3] with strides [1, 2] on cpu"
    prologue = program.prologue
    assert prologue is not None and prologue.constants == ("c",) and prologue.weights[0].tensor is weight
    assert prologue.module(weight)[0].tolist() == [2] * 4
    assert prologue.assumed["positive"]({"c": weight}) and not prologue.assumed["positive"]({"c": -weight})


def test_a_program_without_prologue_has_none():
    graph, _ = graph_of_two()
    graph.prologue = None
    assert prologue_of(graph) is None
    assert Program(graph.device, (), {}, (), ()).geometry == {}
