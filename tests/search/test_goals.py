"""What is wanted, and who is best: values by hand."""

from __future__ import annotations

import math

import pytest

from pipeline.report.summary import Summary
from pipeline.search.config import Rung, SearchConfig
from pipeline.search.goals import METRICS, Trial, read_goals, trial_of
from pipeline.search.ranking import front, ordered, winner
from stages.benchmark.statistics import Ratio
from stages.ir.errors import ConfigError

GOALS = {"latency_ms": "minimize", "speedup": "maximize", "error_ratio": {"max": 2.0}, "peak_mib": {"max": 4096}}


def run(**figures) -> Summary:
    return Summary("a", "passed", **{"speedup": Ratio(1.5, 1.4, 1.6), "memory_bytes": 2.0**30, **figures})


def test_a_job_is_worth_its_figures() -> None:
    trial = trial_of(3, run(latency_ms=2.0, error_ratio=1.5), read_goals(GOALS))
    assert trial.values == {"latency_ms": 2.0, "speedup": 1.5, "error_ratio": 1.5, "peak_mib": 1024.0}
    assert (trial.number, trial.costs, trial.violation, trial.reason) == (3, (2.0, -1.5), 0.0, "")


def test_a_limit_is_broken_by_a_share_of_it() -> None:
    trial = trial_of(0, run(latency_ms=2.0, error_ratio=3.0, memory_bytes=5120 * 2.0**20), read_goals(GOALS))
    assert trial.violation == pytest.approx(0.5 + 0.25) and not trial.feasible
    assert trial.reason == "error_ratio 3 > 2, peak_mib 5120 > 4096"
    least = read_goals({"speedup": {"min": 3.0}, "error_ratio": {"max": 0}})
    assert trial_of(0, run(latency_ms=1.0, error_ratio=0.5), least).violation == pytest.approx(0.5 + 0.5)
    assert list(least.objectives) == ["latency_ms"]


def test_what_has_no_figures_is_as_far_as_can_be() -> None:
    goals = read_goals(GOALS)
    assert trial_of(0, None, goals).violation == math.inf
    missing = trial_of(0, run(latency_ms=2.0), goals)
    assert missing.violation == math.inf and missing.reason == "it has no error_ratio"


@pytest.mark.parametrize(
    ("goals", "key", "said"),
    [
        ({"latency": "minimize"}, "search.goals.latency", "did you mean 'latency_ms'? Valid: compile_seconds"),
        ({"latency_ms": "minimise"}, "search.goals.latency_ms", "did you mean 'minimize'?"),
        ({"peak_mib": {"most": 3}}, "search.goals.peak_mib", "Valid: max, min"),
        ({"peak_mib": {"max": "3 GiB"}}, "search.goals.peak_mib.max", "wants a number"),
        ({"peak_mib": {"max": math.nan}}, "search.goals.peak_mib.max", "wants a number"),
        ({"peak_mib": {}}, "search.goals.peak_mib", "is empty"),
        ({"peak_mib": 3}, "search.goals.peak_mib", "there is no '3'"),
    ],
)
def test_goals_that_say_nothing_name_the_key_and_the_mend(goals: dict, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        SearchConfig(goals=goals)
    assert error.value.key == key and said in str(error.value)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"method": "random", "trials": 0}, "search.trials"),
        ({"method": "random", "minutes": 0.0}, "search.minutes"),
        ({"seed": -1}, "search.seed"),
        ({"method": "grid", "trials": 3}, "search.trials"),
        ({"method": "halving"}, "search.rungs"),
        ({"method": "halving", "rungs": (Rung((), 1.5),)}, "search.rungs[0].keep"),
    ],
)
def test_values_out_of_range_name_the_key(settings: dict, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        SearchConfig(**settings)
    assert error.value.key == key


def test_every_metric_is_a_figure_of_a_summary() -> None:
    whole = run(latency_ms=1.0, error_ratio=1.0, relative_error=1e-7, compile_seconds=2.0, items_per_second=8.0)
    assert all(figure(whole) is not None for figure in METRICS.values())


# Two objectives, less is better:  c and d are behind b, e equals a, f breaks a limit, g has no result.
TRIALS = [
    Trial(0, costs=(1.0, 4.0)),
    Trial(1, costs=(2.0, 2.0)),
    Trial(2, costs=(2.0, 3.0)),
    Trial(3, costs=(3.0, 3.0)),
    Trial(4, costs=(1.0, 4.0)),
    Trial(5, costs=(0.5, 0.5), violation=0.3, reason="peak_mib 5 > 4"),
    Trial(6, violation=math.inf, reason="no right result"),
    Trial(7, costs=(4.0, 1.0)),
    Trial(8, costs=(0.1, 0.1), violation=0.2, reason="peak_mib 4.8 > 4"),
]


def test_the_front_is_what_no_other_beats() -> None:
    assert [trial.number for trial in front(TRIALS)] == [0, 1, 4, 7]
    assert front([]) == [] and winner(TRIALS[5:7]) is None


def test_the_winner_is_the_first_of_the_front_by_the_first_objective() -> None:
    best = winner(TRIALS)
    assert best is not None and best.number == 0
    assert winner([Trial(0, costs=(2.0,)), Trial(1, costs=(1.0,)), Trial(2, costs=(1.0,))]) == Trial(1, costs=(1.0,))


def test_the_order_goes_front_by_front_and_then_by_the_distance_from_the_limits() -> None:
    assert [trial.number for trial in ordered(TRIALS)] == [0, 4, 1, 7, 2, 3, 8, 5]
