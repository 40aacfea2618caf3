"""Index arithmetic against plain Python integers."""

import itertools
import operator

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.ir import index
from stages.ir.expr import Axis, Const, Expr, Op, Var

AXES = [Axis("a", 4), Axis("b", 6), Axis("c", 5)]


def evaluate(expr: Expr, position: dict[Axis, int]) -> int:
    if isinstance(expr, Const):
        return int(expr.value)
    if isinstance(expr, Var):
        return position[expr.axis]
    assert isinstance(expr, Op)
    left, right = (evaluate(arg, position) for arg in expr.args)
    return {"add": operator.add, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod}[expr.name](
        left, right
    )


@st.composite
def programs(draw):
    """A random index, built twice: as an expression by our constructors, as a Python function by hand."""
    axis = draw(st.sampled_from(AXES))
    expr, function = index.variables([axis])[0], lambda position, axis=axis: position[axis]
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["add", "shift", "mul", "floordiv", "mod"]))
        size = draw(st.integers(1, 12))
        if kind == "add":
            other = draw(st.sampled_from(AXES))
            expr = index.add(expr, index.mul(index.variables([other])[0], size))
            function = lambda p, f=function, o=other, s=size: f(p) + p[o] * s  # noqa: E731
        elif kind == "shift":
            size = draw(st.integers(-9, 9))
            expr, function = index.add(expr, size), lambda p, f=function, s=size: f(p) + s
        elif kind == "mul":
            expr, function = index.mul(expr, size), lambda p, f=function, s=size: f(p) * s
        elif kind == "floordiv":
            expr, function = index.floordiv(expr, size), lambda p, f=function, s=size: f(p) // s
        else:
            expr, function = index.mod(expr, size), lambda p, f=function, s=size: f(p) % s
    return expr, function


@settings(max_examples=300, deadline=None)
@given(programs())
def test_simplified_index_equals_plain_arithmetic(program):
    expr, function = program
    span = index.bounds(expr)
    assert span is not None
    for values in itertools.product(*(range(axis.extent) for axis in AXES)):
        position = dict(zip(AXES, values))
        assert evaluate(expr, position) == function(position)
        assert span[0] <= function(position) <= span[1]


def test_reshape_there_and_back_is_the_identity():
    flat = index.variables([Axis("i", 24)])[0]
    position = index.delinearize(flat, (2, 3, 4))
    assert index.linearize(position, (12, 4, 1)) is flat
    assert index.linearize(index.delinearize(index.add(flat, 3), (9, 3)), (3, 1)) is index.add(flat, 3)


def test_split_of_a_head_dimension_needs_no_division():
    b, s, h, d = index.variables([Axis("b", 2), Axis("s", 8), Axis("h", 3), Axis("d", 4)])
    flat = index.linearize((b, s, h, d), (96, 12, 4, 1))
    assert index.delinearize(flat, (2, 8, 12)) == (b, s, index.add(index.mul(h, 4), d))


def test_lower_digits_do_not_hinder_a_division():
    a, b = index.variables([Axis("a", 8), Axis("b", 4)])
    both = index.linearize((a, b), (4, 1))
    assert index.floordiv(both, 16) is index.floordiv(a, 4)
    assert index.mod(both, 16) is index.add(index.mul(index.mod(a, 4), 4), b)
