"""Kernels: normal form, verifier, facts."""

import dataclasses

import pytest

from stages.ir import index
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, cast, load, op, reduce, var
from stages.ir.kernel import IRError, Kernel, Store, in_place, normalize, traffic, verify
from stages.ir.text import kernel_text


def softmax(names: str = "bst") -> Kernel:
    b, s, t = (Axis(name, extent) for name, extent in zip(names, (2, 3, 8)))
    at = index.linearize(index.variables((b, s, t)), (24, 8, 1))
    value = cast(load(Buffer("in0", DType.BFLOAT16, 48), at), DType.FLOAT32)
    shifted = op("exp", op("sub", value, reduce("max", (t,), value)))
    out = op("div", shifted, reduce("sum", (t,), shifted))
    return Kernel("softmax", (b, s), (t,), (Store(Buffer("out0", DType.FLOAT32, 48), at, out, inner=True),))


def test_normal_form_merges_loops_and_names_them():
    kernel = normalize(softmax())
    verify(kernel)
    assert [(axis.name, axis.extent) for axis in (*kernel.parallel, *kernel.inner)] == [("i0", 6), ("r0", 8)]
    assert kernel.hash == normalize(dataclasses.replace(softmax("xyz"), name="other")).hash
    assert "%2 = max over r0 of %1" in kernel_text(kernel)


def test_a_transposed_read_is_split_into_loops_without_division():
    flat = Axis("f", 12)
    at = index.linearize(index.delinearize(var(flat), (3, 4)), (1, 3))
    value = load(Buffer("in0", DType.FLOAT32, 12), at)
    kernel = normalize(Kernel("t", (flat,), (), (Store(Buffer("out0", DType.FLOAT32, 12), var(flat), value),)))
    assert [axis.extent for axis in kernel.parallel] == [3, 4]
    assert "floordiv" not in kernel_text(kernel) and "%" not in kernel_text(kernel).split("load")[1].split("]")[0]


def test_traffic_counts_each_element_once():
    assert traffic(normalize(softmax())) == (48 * 2, 48 * 4)


def test_in_place_wants_one_size_and_one_index():
    axis = Axis("i", 8)
    x, y, o = (Buffer(name, DType.FLOAT32, 8) for name in ("in0", "in1", "out0"))
    flipped = index.add(index.mul(var(axis), -1), 7)
    value = op("add", load(x, var(axis)), load(y, flipped))
    kernel = Kernel("k", (axis,), (), (Store(o, var(axis), value),))
    assert in_place(kernel) == {(x, o)}
    assert in_place(softmax()) == frozenset()


def test_verifier_names_what_is_wrong():
    kernel = softmax()
    (b, s), (t,) = kernel.parallel, kernel.inner
    running = reduce("sum", (t,), kernel.stores[0].value)
    with pytest.raises(IRError, match="holds float32"):
        verify(dataclasses.replace(kernel, stores=(dataclasses.replace(kernel.stores[0], value=var(t)),)))
    with pytest.raises(IRError, match="not over the inner axes"):
        verify(Kernel("k", (b,), (s, t), (dataclasses.replace(kernel.stores[0], value=running),)))
    with pytest.raises(IRError, match="out of scope"):
        verify(dataclasses.replace(kernel, stores=(dataclasses.replace(kernel.stores[0], inner=False),)))


def test_types_are_checked_when_built():
    half = load(Buffer("x", DType.FLOAT16, 1), index.number(0))
    with pytest.raises(TypeError, match="storage only"):
        op("add", half, half)
    with pytest.raises(TypeError, match="one type"):
        op("add", cast(half, DType.FLOAT32), index.number(1))
