"""The Pareto front, against fronts found by hand and against its definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.report.pareto import front


def test_a_front_found_by_hand() -> None:
    points = [{"ms": ms, "error": error} for ms, error in ((1, 9), (2, 5), (2, 6), (3, 5), (4, 1), (5, 1))]
    assert front(points, {"ms": "minimize", "error": "minimize"}) == [0, 1, 4]
    assert front(points, {"ms": "maximize", "error": "minimize"}) == [5]
    assert front(points, {"ms": "minimize"}) == [0]


def test_equal_points_are_both_on_it() -> None:
    assert front([{"ms": 1.0}, {"ms": 2.0}, {"ms": 1.0}], {"ms": "minimize"}) == [0, 2]


def test_a_point_without_a_figure_is_on_no_front() -> None:
    points = [{"ms": 1.0}, {"ms": float("nan"), "error": 1.0}, {"ms": 2.0, "error": 2.0}]
    assert front(points, {"ms": "minimize", "error": "minimize"}) == [2]


def test_of_nothing() -> None:
    assert front([], {"ms": "minimize"}) == []


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=12))
def test_no_point_beats_one_on_the_front_and_each_other_is_beaten_by_one(rows: list[tuple[int, int, int]]) -> None:
    points = [dict(zip("abc", map(float, row))) for row in rows]
    found = front(points, {"a": "minimize", "b": "maximize", "c": "minimize"})
    costs = [(row[0], -row[1], row[2]) for row in rows]
    for index, cost in enumerate(costs):
        beaten_by = [
            other for other, theirs in enumerate(costs) if theirs != cost and all(t <= c for t, c in zip(theirs, cost))
        ]
        assert (index in found) == (not beaten_by)
        assert not beaten_by or set(beaten_by) & set(found)
