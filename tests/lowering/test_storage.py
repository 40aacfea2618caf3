"""Who owns the memory of a value, and what `build_kernel` makes of it."""

import pytest
import torch

from stages.fusion.lowering import Kind, NotFusable, base_of, build_kernel, extent, is_view, kind_of
from stages.ir.memory import overlaps
from tests.lowering.harness import Run, calls, together, trace
from tests.lowering.samples import randn


def named(graph):
    return {node.name: node for node in graph.nodes}


def test_chains_of_views_end_at_the_placeholder():
    nodes = named(trace(lambda x: x.view(4, 6)[1:, ::2].transpose(0, 1) + 1, [randn(24)]))
    base = base_of(nodes["transpose"])
    assert (base.node.name, base.shape, base.strides, base.offset) == ("arg0_1", (3, 3), (2, 6), 6)
    assert is_view(nodes["transpose"])
    assert not is_view(nodes["add"])
    assert base_of(nodes["add"]).node is nodes["add"]


def test_an_offset_counts_from_the_placeholders_own_first_element():
    x = randn(5, 8)[2:, 1:]
    nodes = named(trace(lambda x: x[1] + 1, [x]))
    base = base_of(nodes["select"])
    assert (base.node.name, base.strides, base.offset) == ("arg0_1", (1,), 8)


def test_parts_of_a_split_are_views_and_parts_of_a_computation_are_not():
    def function(x):
        first, second = x.split(2)
        values, places = x.max(1)
        return first + 1, second + 1, values, places

    nodes = calls(trace(function, [randn(4, 3)]))
    parts = [node for node in nodes if node.name.startswith("getitem")]
    assert [base_of(node).node.name for node in parts[:2]] == ["arg0_1"] * 2
    assert [base_of(node).offset for node in parts[:2]] == [0, 6]
    assert [base_of(node).node for node in parts[2:]] == parts[2:]
    assert [kind_of(node) for node in parts] == [Kind.VIEW, Kind.VIEW, Kind.REDUCTION, Kind.REDUCTION]


def test_bytes_read_as_another_type_are_no_view_of_ours():
    nodes = named(trace(lambda x: x.view(torch.int32) + 1, [randn(4)]))
    node = next(node for name, node in nodes.items() if name.startswith("view"))
    assert base_of(node).node is node
    assert kind_of(node) is Kind.EXTERN


def test_extent_and_overlap():
    assert extent((2, 3), (3, 1)) == 6
    assert extent((2, 3), (10, 2)) == 15
    assert extent((4, 0), (1, 1)) == 0
    assert extent((), ()) == 1
    assert overlaps((2, 3), (0, 1))
    assert overlaps((3, 3), (2, 1))
    assert not overlaps((3, 2), (2, 1))
    assert not overlaps((2, 3), (1, 2))
    assert not overlaps((1, 3), (0, 1))


def test_buffers_are_the_memory_of_the_bases_in_order_of_first_use():
    x, y = randn(4, 9)[:, :6], randn(6, 4).t()
    graph = trace(lambda x, y: (y * x[:, ::2].repeat(1, 2)).relu(), [x, y])
    nodes = named(graph)
    kernel, behind = build_kernel(calls(graph), [nodes["relu"]], "k")
    assert [node.name for node in behind] == ["arg1_1", "arg0_1", "relu"]
    assert [buffer.name for buffer in kernel.buffers] == ["in0", "in1", "out0"]
    assert [buffer.size for buffer in kernel.buffers] == [24, 33, 24]
    run = Run(graph, [x, y])
    run.launch(calls(graph), [nodes["relu"]])
    assert torch.equal(run.tensors()[0], (y * x[:, ::2].repeat(1, 2)).relu())


def test_equal_layers_have_equal_hashes():
    def layer(x, w):
        return torch.nn.functional.layer_norm(torch.relu(x) + w, (6,))

    x, w = randn(4, 6), randn(6)
    graph = trace(lambda x, w: layer(layer(x, w) @ x.T @ x, w), [x, w])
    nodes = calls(graph)
    norms = [node for node in nodes if node.name.startswith("native_layer_norm")]
    hashes = []
    for number, norm in enumerate(norms):
        add = norm.args[0]
        part = next(user for user in norm.users)
        kernel, _ = build_kernel([add.args[0], add, norm, part], [part], f"layer_{number}")
        hashes.append(kernel.hash)
    assert len(hashes) == 2
    assert hashes[0] == hashes[1]


def test_channels_last_is_walked_as_it_lies_in_memory():
    x = randn(2, 8, 4, 6).contiguous(memory_format=torch.channels_last)
    _, kernel = together(lambda x: (x * 2).relu(), [x])
    assert [axis.extent for axis in kernel.parallel] == [384]
    _, kernel = together(lambda x: x.mean((2, 3)), [x])
    assert ([axis.extent for axis in kernel.parallel], [axis.extent for axis in kernel.inner]) == ([2, 8], [24])


def test_a_tensor_seen_through_its_view_inside_a_group_is_not_read_back():
    """The view is not listed among the nodes, its base is."""
    graph = trace(lambda x: (x * 2).view(6, 4).sum(1), [randn(4, 6)])
    nodes = named(graph)
    _, behind = build_kernel([nodes["mul"], nodes["sum_1"]], [nodes["sum_1"]], "k")
    assert [node.name for node in behind] == ["arg0_1", "sum_1"]


def test_a_deep_chain_is_refused_not_a_crash():
    def function(x):
        for _ in range(600):
            x = x.sin()
        return x

    with pytest.raises(NotFusable, match="nest too deep"):
        together(function, [randn(2)])


def test_shared_work_is_not_copied():
    """Each step uses the one before twice: inlined naively, this would have 2**30 nodes."""

    def function(x):
        for _ in range(30):
            x = x * x + x
        return x

    _, kernel = together(function, [randn(3)])
    assert len(kernel.nodes) < 100
