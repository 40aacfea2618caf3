"""Tensors on several devices, traced with FakeTensors of CUDA: no GPU is needed."""

import pytest
import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from stages.capture import decompositions
from stages.capture.aot import LeftToEager, compile_aot
from stages.fusion.lowering import Kind, kind_of

aten = torch.ops.aten


def traced(model):
    """The graph of `model` of a CUDA tensor (4, 3)."""
    mode, graphs = FakeTensorMode(static_shapes=True), []
    with mode:
        value = torch.empty(4, 3, device="cuda")
    with torch.no_grad(), tracing(TracingContext(mode)):
        compile_aot(fx.symbolic_trace(lambda x: (model(x),)), [value], graphs.append)
    return graphs[0]


REFUSED = {
    "index_add": lambda x: torch.index_add(x, 0, torch.tensor([0]), x[:1]),
    "index_copy": lambda x: torch.index_copy(x, 0, torch.tensor([0]), x[:1]),
    "index_copy of a number": lambda x: torch.index_copy(x, 0, torch.tensor(0), x[:1]),
    "index_fill": lambda x: torch.index_fill(x, 0, torch.tensor([0]), 1.0),
    "take": lambda x: torch.take(x, torch.tensor([0])),
    "take of a number": lambda x: torch.take(x, torch.tensor(0)),
    "gather": lambda x: x.gather(0, torch.tensor([[0]])),
    "embedding": lambda x: torch.embedding(x, torch.tensor([0])),
    "nll_loss": lambda x: torch.nn.functional.nll_loss(x, torch.tensor([0, 1, 1, 2])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_index_on_the_cpu_that_eager_refuses_is_left_to_eager(name):
    with pytest.raises(LeftToEager):
        traced(REFUSED[name])


READ_BY_EAGER = {
    "index": lambda x: x[torch.tensor([0, 2])],
    "index_put": lambda x: x.index_put((torch.tensor([0, 2]),), x[2:]),
    "index_select of a number, which eager refuses": lambda x: torch.index_select(x, 0, torch.tensor(0)),
    "a number": lambda x: x + torch.tensor(2.0),
}


@pytest.mark.parametrize("name", READ_BY_EAGER)
def test_no_kernel_reads_memory_of_the_host(name):
    graph = traced(READ_BY_EAGER[name]).module.graph
    mixed = [node for node in graph.nodes if node.op == "call_function" and len(devices_of(node)) > 1]
    assert mixed and {kind_of(node) for node in mixed} == {Kind.EXTERN}


def devices_of(node):
    values = [value.meta["val"] for value in (*node.all_input_nodes, node)]
    return {value.device for value in values if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("name", decompositions._SCATTERS.split())
def test_a_part_written_to_an_expanded_tensor_has_room(name):
    """FakeTensors of torch 2.11 say that the result is expanded, too."""
    arguments = {
        "slice_scatter": ((4, 3), 0, 0, 4, 2),
        "diagonal_scatter": ((3,),),
        "as_strided_scatter": ((2, 3), [2, 3], [3, 1]),
    }
    shape, *rest = arguments[name]
    source = torch.ones(2, *shape[1:]) if name == "slice_scatter" else torch.ones(shape)
    x = torch.arange(3.0).expand(4, 3)
    operator = getattr(aten, name).default
    with FakeTensorMode() as mode:
        fake, part = mode.from_tensor(x), mode.from_tensor(source)
        made = decompositions.table()[operator](fake, part, *rest)
    assert made.stride() == operator(x, source, *rest).stride() == (3, 1)
    assert decompositions.table()[operator](x.contiguous(), source, *rest) is NotImplemented


@pytest.mark.gpu
@pytest.mark.parametrize("name", REFUSED)
def test_the_error_is_eagers(name):
    from pipeline.backend import torchweld

    x = torch.rand(4, 3, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        REFUSED[name](x)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="same device"):
        torch.compile(REFUSED[name], backend=torchweld)(x)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["index", "index_put", "a number"])
def test_an_index_on_the_cpu_that_eager_takes(name):
    from pipeline.backend import torchweld

    x = torch.rand(4, 3, device="cuda")
    torch._dynamo.reset()
    assert torch.equal(torch.compile(READ_BY_EAGER[name], backend=torchweld)(x), READ_BY_EAGER[name](x))
