"""The space of a search is what Hydra's grammar says; its points are texts that Hydra reads again."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest

from pipeline.compose import jobs_of, parse
from pipeline.search.space import Choices, Interval, Space, space_of
from stages.ir.errors import ConfigError


def space(*overrides: str) -> Space:
    return space_of(parse(overrides))


def test_every_kind_of_sweep_is_a_dimension() -> None:
    found = space(
        "a=x,y,x", "b=3", "c=choice([1,2],'p q')", "d=range(1,8,3)", "e=interval(0,2)", "+f=int(interval(1,4))"
    )
    assert found.dimensions == (
        Choices("a", ("x", "y")),
        Choices("c", ("[1,2]", "p\\ q")),
        Choices("d", ("1", "4", "7"), ordered=True),
        Interval("e", 0.0, 2.0),
        Interval("+f", 1, 4, whole=True),
    )
    assert found.size is None and space("a=x,y", "f=int(interval(1,4))", "d=range(0,1,0.5)").size == 2 * 4 * 2
    assert space("a=tag(log,interval(1e-4,1))").dimensions == (Interval("a", 1e-4, 1.0, log=True),)
    assert space("a=1,2", "a=3,4").dimensions == (Choices("a", ("3", "4")),)


@pytest.mark.parametrize("value", ["interval(2,1)", "tag(log,interval(0,1))", "tag(log,choice(1,2))", "glob(*)"])
def test_what_cannot_be_searched_names_its_key(value: str) -> None:
    with pytest.raises(ConfigError) as error:
        space(f"a={value}")
    assert error.value.key == "a"


def test_points_are_in_the_order_of_a_grid_and_make_its_jobs() -> None:
    overrides = ["model.path=m:f", "a=x,'y z'", "b=1", "c=range(0,3)"]
    grid, found = jobs_of(overrides), space(*overrides)
    assert [found.overrides(found.point(index)) for index in range(found.size or 0)] == grid


def test_a_rung_takes_the_place_of_what_the_command_line_says() -> None:
    found = space("a=x,y", "benchmark=thorough", "+n=1")
    assert found.overrides(("y",), ["benchmark=quick", "n=2", "z=3"]) == ["a=y", "benchmark=quick", "n=2", "z=3"]


def test_drawing_without_putting_back_goes_through_the_whole_space_once() -> None:
    found = space("a=x,y,z", "b=int(tag(log,interval(1,40)))", "c=range(0,5)")
    taken: set = set()
    while (point := found.draw(Random(len(taken)), taken)) is not None:
        assert point not in taken
        taken.add(point)
    assert len(taken) == found.size == 3 * 40 * 5


def test_numbers_are_drawn_within_their_ends_alike_or_by_their_logarithms() -> None:
    random = Random(0)
    plain, log = Interval("a", 1.0, 10000.0), Interval("a", 1.0, 10000.0, log=True)
    assert median(float(plain.draw(random)) for _ in range(2000)) == pytest.approx(5000, rel=0.1)
    assert median(float(log.draw(random)) for _ in range(2000)) == pytest.approx(100, rel=0.4)
    whole = [int(Interval("a", 1, 4, whole=True).draw(random)) for _ in range(4000)]
    assert [whole.count(number) for number in (1, 2, 3, 4)] == pytest.approx([1000] * 4, rel=0.15)
    for low, high in ((0.1, 0.3), (1e-7, 1e-5), (123456.789, 123456.7899)):
        drawn = [Interval("a", low, high, log=log).draw(random) for log in (False, True) for _ in range(50)]
        assert all(low <= float(text) <= high for text in drawn)
        assert all(parse([f"a={text}"])[0].value() == float(text) for text in drawn)


def test_a_grid_has_no_intervals() -> None:
    with pytest.raises(ConfigError, match="add search=random, tpe or halving") as error:
        jobs_of(["a=1,2", "b=interval(0,1)"])
    assert error.value.key == "b"
