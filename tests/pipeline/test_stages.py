"""Which lists of stages make a pipeline."""

from __future__ import annotations

import itertools

import pytest

from pipeline.stages import STAGES, plan
from stages.ir.errors import ConfigError

WHOLE = [
    "capture",
    "precision",
    "rewrite",
    "fusion",
    "buffers",
    "autotune",
    "codegen",
    "runtime",
    "validate",
    "benchmark",
]
OPTIONAL = ["rewrite", "precision", "autotune", "validate", "benchmark"]


def test_every_set_of_optional_stages_can_be_left_out() -> None:
    for count in range(len(OPTIONAL) + 1):
        for left_out in itertools.combinations(OPTIONAL, count):
            names = [name for name in WHOLE if name not in left_out]
            assert [stage.name for stage in plan(names)] == names


def test_graph_stages_may_change_places() -> None:
    names = ["capture", "precision", "rewrite", "fusion", "buffers", "codegen", "runtime"]
    assert [stage.name for stage in plan(names)] == names


@pytest.mark.parametrize("name", [name for name in WHOLE if name not in OPTIONAL])
def test_a_required_stage_cannot_be_left_out(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is missing"):
        plan([other for other in WHOLE if other != name])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([*WHOLE, "fuson"], "there is no 'fuson'\n  did you mean 'fusion'?"),
        (["capture", *WHOLE], "'capture' is listed twice"),
        ([], "'capture' is missing"),
        (["rewrite", *[name for name in WHOLE if name != "rewrite"]], "'rewrite' takes a graph, but after the start"),
        (
            ["capture", "fusion", "rewrite", "buffers", "codegen", "runtime"],
            "'rewrite' takes a graph, but after 'fusion' there is a program",
        ),
        (
            ["capture", "fusion", "autotune", "buffers", "codegen", "runtime"],
            "'autotune' takes a planned program, but after 'fusion' there is a program",
        ),
        (
            ["capture", "fusion", "buffers", "codegen", "runtime", "benchmark", "validate"],
            "'validate' takes a executable, but after 'benchmark'",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(names: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(names)
    assert caught.value.key == "stages"
    assert said in str(caught.value)


def test_the_order_that_works_is_told() -> None:
    with pytest.raises(ConfigError, match=r"\[capture, rewrite, fusion, buffers, codegen, runtime\]"):
        plan(["capture", "fusion", "rewrite", "buffers", "codegen", "runtime"])


def test_levels_fit_each_other() -> None:
    assert list(STAGES) == WHOLE
    for before, after in itertools.pairwise(STAGES.values()):
        assert before.gives == after.takes
