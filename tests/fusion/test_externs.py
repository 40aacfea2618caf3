"""Operations that torch runs."""

import pytest
import torch
from torch.nn import functional as F

from stages.fusion import run
from stages.fusion.externs import OUT_VARIANTS
from stages.ir.errors import UserError
from stages.ir.program import TensorRef
from tests.fusion.helpers import Machine, check, config, fused, graph_of

aten = torch.ops.aten


@pytest.mark.parametrize("out", OUT_VARIANTS.values(), ids=str)
def test_out_variants_of_the_table_have_kernels_of_their_own(out):
    name = out.name()
    assert all(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("CPU", "CUDA"))


@pytest.mark.parametrize("functional", OUT_VARIANTS, ids=str)
def test_out_variants_take_what_the_operator_takes(functional):
    def arguments(overload):
        return [(each.name, str(each.type)) for each in overload._schema.arguments if not each.is_out]

    out = OUT_VARIANTS[functional]
    assert arguments(out) == arguments(functional)
    assert sum(each.is_out for each in out._schema.arguments) == len(functional._schema.returns)


def test_products_write_into_the_arena():
    program = check(lambda x, w: (x @ w).relu() @ w, torch.randn(3, 4), torch.randn(4, 4))
    first, second = program.externs
    assert first.target is aten.mm.out and first.out
    assert [program.buffers[step.writes[0]].role for step in (first, second)] == ["arena", "output"]
    assert first.reason == "a matrix product is left to torch's library"


def test_arguments_are_views_by_strides():
    program = check(lambda x, w: x[1:, :3] @ w.t(), torch.randn(4, 5), torch.randn(6, 3))
    x, w = program.externs[0].args
    assert (x.shape, x.strides, x.offset) == ((3, 3), (5, 1), 5)
    assert (w.shape, w.strides, w.offset) == ((3, 6), (1, 3), 0)


def test_an_operator_without_an_out_variant_allocates_for_itself():
    program = check(lambda x, w: F.conv2d(x, w).relu(), torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3))
    (step,) = program.externs
    assert step.target is aten.convolution.default and not step.out
    assert program.buffers[step.writes[0]].role == "extern"


def test_a_result_of_torch_that_is_returned_is_not_copied():
    program = check(lambda x, w: F.conv2d(x, w), torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3))
    assert program.buffers[program.outputs[0].buffer].role == "extern"


def test_unused_results_of_an_out_variant_have_a_place():
    program = check(lambda x: F.max_pool2d(x, 2).relu(), torch.randn(1, 2, 4, 4))
    values, indices = program.externs[0].outputs
    assert values.buffer != indices.buffer
    assert (program.buffers[indices.buffer].role, program.buffers[indices.buffer].dtype) == ("arena", torch.int64)


def test_unused_results_of_other_operators_have_none():
    program = check(lambda x: torch.linalg.svd(x)[1] * 2, torch.randn(4, 4))
    assert [ref is None for ref in program.externs[0].outputs] == [True, False, True]


def test_several_results_and_lists_of_arguments():
    def function(x, y):
        values, indices = torch.sort(torch.cat([x.relu(), y], 1), dim=1, stable=True)
        return values * 2, indices

    program = check(function, torch.randn(3, 4), torch.randn(3, 2), name="none")
    assert program.externs[-1].target is aten.sort.values_stable
    assert [ref.shape for ref in program.externs[-1].outputs] == [(3, 6), (3, 6)]


def test_memory_read_as_another_type_is_a_copy_of_it():
    program = check(lambda x: (x * 2).view(torch.int32) + 1, torch.randn(6))
    (step,) = program.externs
    assert not step.out and program.buffers[step.writes[0]].role == "arena"


def test_complex_numbers_are_left_to_torch():
    def function(x, y):
        return torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y)) + 1

    program = check(function, torch.randn(4, 3, 2), torch.randn(4, 3, 2))
    reasons = {step.label: step.reason for step in program.externs}
    assert len(program.launches) == 1 and reasons["mul"] == "the loop IR has no type complex64"


def test_views_in_lists_are_no_steps():
    program = check(lambda x: [part * 2 for part in x.split(2, 1)], torch.randn(4, 6))
    assert not program.externs and {launch.reads for launch in program.launches} == {(program.inputs[0].name,)}


def test_random_operations_keep_their_order():
    def function(x):
        return torch.rand_like(x) * 3, torch.randn_like(x).relu(), torch.rand_like(x)

    x = torch.randn(3, 4)
    program = fused(function, x)
    torch.manual_seed(5)
    expected = function(x)
    torch.manual_seed(5)
    for mine, eager in zip(Machine(program, [x]).run(), expected, strict=True):
        torch.testing.assert_close(mine, eager)


def test_a_number_that_only_a_run_can_tell_is_refused_with_its_place():
    graph = graph_of(lambda x: x * 2, torch.randn(3))
    nodes = graph.module.graph
    made = next(node for node in nodes.nodes if node.op == "call_function")
    with nodes.inserting_after(made):
        item = nodes.call_function(aten.item.default, (made,))
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    item.meta["val"] = ShapeEnv().create_unbacked_symfloat()
    item.meta["stack_trace"] = '  File "model.py", line 3, in forward\n    y = x.item()'
    with nodes.inserting_after(item):
        used = nodes.call_function(aten.mul.Tensor, (made, item))
    used.meta["val"] = made.meta["val"]
    next(iter(reversed(nodes.nodes))).args = ((used,),)
    with pytest.raises(UserError, match=r"model.py:3: the result of aten.item.default is a number"):
        run(graph, config())


def test_a_conjugate_view_is_refused_with_the_mend():
    with pytest.raises(UserError, match=r"conjugate view[\s\S]*resolve_conj"):
        fused(lambda x, y: torch.mul(x.conj(), y), *[torch.randn(3, dtype=torch.complex64)] * 2)


def test_zeros_like_reads_nothing():
    program = check(lambda x, w: torch.zeros_like(x @ w) + w, torch.randn(4, 4), torch.randn(4, 4))
    assert not program.externs and len(program.launches) == 1


def test_every_result_of_a_program_is_a_view_of_a_buffer_or_plain():
    program = check(lambda x: (x.split(2, 1)[1], None, 2), torch.randn(4, 6))
    assert program.outputs == (TensorRef(program.inputs[0].name, (4, 2), (6, 1), 2), None, 2)
    assert not program.steps and not program.decisions


def test_a_device_without_a_number_is_any_of_its_type():
    from stages.fusion.memory import lies_on

    for device, expected in (("meta", True), ("meta:0", True), ("meta:1", True), ("cpu", False)):
        assert lies_on(torch.empty(1, device="meta"), torch.device(device)) is expected


def test_what_lies_on_another_device_is_left_to_torch():
    program = fused(lambda x: (x.to("meta") + 1, x + 1), torch.randn(3))
    assert "its result lies on meta" in {step.reason for step in program.externs} and len(program.launches) == 1
