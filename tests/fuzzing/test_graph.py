"""The graph of a case is what Dynamo would hand over: creations are nodes, and nodes have values."""

import torch

from scripts.fuzzing.case import Step, made_on
from scripts.fuzzing.engines import compile_cases
from scripts.fuzzing.graph import as_from_dynamo
from scripts.fuzzing.judge import judge
from tests.fuzzing.cases import case_of, dense


def written_creation():
    """A tensor that the program makes, a view of it, and a write to it."""
    steps = [
        Step("torch.full((3,), 2, dtype=torch.int64)"),
        Step("{0}.as_strided((1, 3), (1, 1))", (2,)),
        Step("{0}.copy_({1})", (2, 0), mutates=True),
        Step("torch.var_mean({0}, correction=0)[0]", (1,), rounds=True),
    ]
    return case_of([dense([5], (), torch.int64), dense([0.5], ())], steps, outputs=(3, 5))


def test_a_tensor_that_the_program_makes_is_made_at_each_call():
    case = written_creation()
    module = as_from_dynamo(case)
    assert next(node.target for node in module.graph.nodes if node.op == "call_function") is torch.full
    assert not list(module.graph.find_nodes(op="get_attr"))
    (candidate,) = compile_cases([case], "aot")
    assert [judge(case, candidate.call) for _ in range(2)] == [[], []]


def test_every_node_has_eagers_value():
    x = dense([1.0, 2.0, 3.0, 4.0], (2, 2))
    case = case_of([x], [Step("{0}.expand((3, 2, 2))", (0,)), ("{0}.sum(1) + torch.arange(2)", (1,))])
    module = as_from_dynamo(case)
    inside = [node for node in module.graph.nodes if node.op != "output"]
    assert [tuple(node.meta["example_value"].shape) for node in inside] == [(2, 2), (3, 2, 2), (3, 2), (2,), (3, 2)]
    assert inside[1].meta["example_value"].stride() == (0, 2, 1)


def test_tensors_are_made_where_the_inputs_lie():
    case = case_of([dense([1.0, 2.0])], [("{0} + torch.arange(2)", (0,))])
    module = as_from_dynamo(case, "meta")
    assert {node.meta["example_value"].device.type for node in module.graph.nodes if node.op != "output"} == {"meta"}
    with made_on("meta"):
        assert case.function()(*case.tensors("meta"))[0].device.type == "meta"
    assert 'torch.set_default_device("cuda")' in case.text("cuda")
    assert "set_default_device" not in case.text()


def test_a_value_that_is_returned_twice_is_one_tensor():
    case = case_of([], [Step("torch.arange(2, dtype=torch.float32)")], outputs=(0, 0))
    (candidate,) = compile_cases([case], "aot")
    assert judge(case, candidate.call) == []
