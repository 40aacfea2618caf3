"""Tensors whose elements share memory, as expanded ones do, wherever the runtime copies: `copy_` alone refuses them."""

import dataclasses

import pytest
import torch

from stages import buffers, runtime
from stages.buffers import BuffersConfig
from stages.ir.graph import GraphInput
from stages.ir.memory import write
from stages.ir.program import Extern, Geometry, Prologue, TensorRef
from stages.runtime import RuntimeConfig
from stages.runtime.cuda_graph import GraphLane
from stages.runtime.frame import Frame
from stages.runtime.views import aligned
from tests.buffers.programs import CPU, launch, program, scale_kernel, whole
from tests.runtime.doubles import compiled

aten = torch.ops.aten
gpu = pytest.mark.gpu

LAYOUTS = [((2, 4), (0, 1)), ((4, 2), (1, 0)), ((2, 2, 2), (0, 2, 0)), ((2, 3), (1, 1)), ((1, 4), (0, 1))]


def layout_of(shape, strides, offset=0, device="cpu", seed=0):
    """Random numbers that lie so."""
    memory = torch.randn(16, generator=torch.Generator().manual_seed(seed)).to(device)
    return memory.as_strided(shape, strides, offset)


def doubled_and_more(shape, strides, device=CPU):
    """The output y = 2 x of a kernel, over the memory that x reaches, and the output z = x + 1 of an operator."""
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
    count = torch.Size(shape).numel()
    steps = [
        launch(scale_kernel(size, 2.0), "x", "y"),
        Extern(aten.add.Tensor, (TensorRef("x", shape, strides), 1), {}, (whole("z", *shape),)),
    ]
    roles = [("x", "user", size), ("y", "output", size), ("z", "extern", count)]
    outputs = [TensorRef("y", shape, strides), whole("z", *shape)]
    made = program(roles, steps, outputs, geometry={"x": Geometry(shape, strides, torch.float32, device)})
    return buffers.run(dataclasses.replace(made, device=device), BuffersConfig("best"))


@pytest.mark.parametrize(("shape", "strides"), LAYOUTS, ids=str)
def test_a_copy_of_a_misaligned_input_lies_as_the_input(shape, strides):
    x = next(x for offset in range(4) if (x := layout_of(shape, strides, offset)).data_ptr() % 16)
    copy = aligned(x, 16)
    assert copy.data_ptr() % 16 == 0 and copy.stride() == x.stride()
    assert torch.equal(copy, x)


def test_a_copy_of_a_conjugate_is_resolved():
    x = torch.randn(3, dtype=torch.complex64).conj().expand(2, 3)
    copy = aligned(x, 1)
    assert not copy.is_conj() and copy.stride() == (0, 1)
    assert torch.equal(copy, x)


def test_a_tensor_without_strides_is_written_as_it_is():
    target = torch.zeros(2, 3).to_mkldnn()
    write(target, torch.ones(2, 3).to_mkldnn())
    assert torch.equal(target.to_dense(), torch.ones(2, 3))


@pytest.mark.parametrize(("shape", "strides"), LAYOUTS, ids=str)
def test_memory_of_a_graph_takes_such_an_input(shape, strides):
    made = doubled_and_more(shape, strides)
    frame = Frame(made, compiled(made), {}, static_outputs=True, copy_outputs=True)
    lane = GraphLane(made, frame, RuntimeConfig(inputs="copy"), lambda note: None)
    for seed in range(2):
        x = layout_of(shape, strides, 1, seed=seed)
        assert lane._copy([x]) is (seed == 0)
        frame.load([lane._copied[0]], 0)
        frame.execute()
        assert [torch.equal(*pair) for pair in zip(frame.outputs([x]), (2 * x, x + 1))] == [True, True]


def test_a_result_that_an_operator_laid_out_otherwise():
    """The program says that the operator's result is expanded, as FakeTensor did; it is not."""
    expanded = TensorRef("y", (2, 3), (0, 1))
    step = Extern(lambda x: x.clone(), (whole("x", 2, 3),), {}, (expanded,))
    geometry = {"x": Geometry((2, 3), (3, 1), torch.float32, CPU)}
    made = program([("x", "user", 6), ("y", "extern", 3)], [step], [expanded], geometry=geometry)
    run = runtime.run(made, compiled(made), RuntimeConfig())
    x = torch.tensor([1.0, 2.0, 3.0]).repeat(2, 1)
    (y,) = run([x])
    assert y.stride() == (0, 1) and torch.equal(y, x)


def test_an_expanded_constant_follows_its_weight():
    weight = torch.ones(1)
    graph = torch.fx.symbolic_trace(lambda w: ((w * 2).expand(4),))
    step = Extern(aten.add.out, (whole("x", 4), TensorRef("c", (4,), (0,))), {}, (whole("o", 4),), out=True)
    roles = [("x", "user", 4), ("c", "constant", 1), ("o", "output", 4)]
    made = program(roles, [step], [whole("o", 4)], {"c": torch.full((1,), 2.0).expand(4)})
    prologue = Prologue(graph, (GraphInput("w", "weight", "w", weight),), ("c",))
    run = runtime.run(dataclasses.replace(made, prologue=prologue), compiled(made), RuntimeConfig())
    for value in (1.0, 5.0):
        weight.fill_(value)
        assert torch.equal(run([torch.zeros(4)])[0], torch.full((4,), 2 * value))


@gpu
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("inputs", ["copy", "static"])
@pytest.mark.parametrize(("shape", "strides"), LAYOUTS, ids=str)
def test_on_cuda_in_every_mode(shape, strides, inputs, graph, offset):
    device = torch.device("cuda", torch.cuda.current_device())
    made = doubled_and_more(shape, strides, device)
    run = runtime.run(made, compiled(made), RuntimeConfig(inputs=inputs, cuda_graph=graph))
    for seed in range(3):
        x = layout_of(shape, strides, offset, device, seed)
        y, z = run([x])
        assert torch.equal(y, 2 * x) and torch.equal(z, x + 1)
    assert not [note for note in run.notes if "one by one" in note]
