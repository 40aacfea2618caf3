"""The order of steps, with peaks counted by hand."""

import pytest

from stages.fusion.order import Task, order
from stages.ir.kernel import IRError


def task(reads="", writes="", size=1, after=(), kept=""):
    return Task(frozenset(reads), dict.fromkeys(writes, size), after, frozenset(kept))


def test_the_graphs_own_order_is_kept_where_it_is_as_good():
    assert order([task("", "a"), task("", "b"), task("a", "c"), task("bc", "d", kept="d")]) == [0, 1, 2, 3]


def test_a_value_is_made_when_it_is_needed():
    # Four large values, each reduced to a small one: one at a time needs 10 + 4 bytes, all at once 40.
    tasks = [task("", "abcd"[number], 10) for number in range(4)]
    tasks += [task("abcd"[number], "wxyz"[number], 1) for number in range(4)]
    tasks.append(task("wxyz", "r", 1, kept="r"))
    found = order(tasks)
    assert [found.index(4 + number) - found.index(number) for number in range(4)] == [1, 1, 1, 1]


def test_other_reasons_to_wait_are_kept():
    assert order([task("", "a", 9), task("", "b", 1, after=(0,)), task("ab", "c", kept="c")]) == [0, 1, 2]
    assert order([task("", "a", 1, after=(1,)), task("", "b", 1), task("ab", "c", kept="c")]) == [1, 0, 2]


def test_a_circle_is_an_error():
    with pytest.raises(IRError, match="wait for each other"):
        order([task("b", "a"), task("a", "b")])
