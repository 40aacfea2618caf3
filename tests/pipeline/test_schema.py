"""Plain values to dataclasses: what passes, and what is said of what does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from pipeline.schema import read
from stages.ir.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    size: int
    scale: float = 1.0


@dataclass(frozen=True)
class Outer:
    inner: Inner
    name: Literal["one", "two"] = "one"
    path: str | None = None
    flag: bool = False
    sizes: tuple[int, ...] = ()
    names: Sequence[str] = ()
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=dict)


def test_everything_that_a_key_may_hold() -> None:
    values = {
        "inner": {"size": 3, "scale": 2},
        "name": "two",
        "path": "here",
        "flag": True,
        "sizes": [1, 2],
        "names": ["a"],
        "by_name": {"x": {"size": 1}},
        "free": {"anything": [1, {"deep": None}]},
    }
    result = read(Outer, values, "")
    assert result == Outer(
        Inner(3, 2.0), "two", "here", True, (1, 2), ("a",), {"x": Inner(1)}, {"anything": [1, {"deep": None}]}
    )
    assert type(result.inner.scale) is float


@pytest.mark.parametrize(
    ("changed", "key", "said"),
    [
        ({"inner": {}}, "inner.size", "is missing"),
        ({"inner": {"size": 1, "scael": 2}}, "inner.scael", "did you mean 'scale'?"),
        ({"inner": 3}, "inner", "wants keys and values, not 3"),
        ({"inner": {"size": True}}, "inner.size", "wants a whole number, not true"),
        ({"inner": {"size": 1.5}}, "inner.size", "wants a whole number, not 1.5"),
        ({"inner": {"size": "1"}}, "inner.size", "wants a whole number, not '1'"),
        ({"inner": {"size": None}}, "inner.size", "not None"),
        ({"name": "tow"}, "name", "did you mean 'two'?"),
        ({"path": 3}, "path", "wants text or null, not 3"),
        ({"flag": 1}, "flag", "wants true or false, not 1"),
        ({"sizes": 3}, "sizes", "wants a list, each a whole number, not 3"),
        ({"sizes": [1, "x"]}, "sizes[1]", "wants a whole number, not 'x'"),
        ({"names": "abc"}, "names", "wants a list, each text"),
        ({"by_name": {"x": {"size": 1, "y": 2}}}, "by_name.x.y", "there is no such key"),
        ({"free": 3}, "free", "wants keys and values, not 3"),
        ({"nmae": "one"}, "nmae", "did you mean 'name'?"),
    ],
)
def test_what_does_not_pass_is_named(changed: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(Outer, {"inner": {"size": 1}, **changed}, "")
    assert caught.value.key == key
    assert said in str(caught.value)
