"""Searches over jobs that cost nothing: what is tried, what is not tried twice, what wins, what a kill leaves."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.commands.compare import runs_in
from pipeline.compose import parse
from pipeline.search.config import Rung, SearchConfig
from pipeline.search.sampling import RandomSearch
from pipeline.search.space import space_of
from pipeline.search.trials import Setting
from stages.ir.errors import ConfigError, UserError
from tests.search.fakes import Figures, Killed, World, base_config
from tests.sweep.test_table import Checked

RANDOM = SearchConfig("random", trials=6)
TPE = SearchConfig("tpe", trials=24, startup_trials=6)
HALVING = SearchConfig("halving", trials=8, rungs=(Rung(("effort=1",), 0.5), Rung(("effort=2",), 0.25)))
SPACE = ["x=a,b,c", "y=int(interval(1,5))"]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def parabola(values) -> Figures:
    """Least, 1 ms, at x=b, y=3."""
    return Figures(1.0 + (values["x"] != "b") + (int(values["y"]) - 3) ** 2)


def points(world: World) -> list[tuple[str, str]]:
    return [(values["x"], values["y"]) for values in world.ran]


def table_of(world: World) -> dict:
    return json.loads((world.newest / "sweep.json").read_text())


# ---- what is tried -----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [RANDOM, replace(TPE, trials=10), HALVING], ids=["random", "tpe", "halving"])
def test_a_seed_repeats_the_search_and_nothing_is_tried_twice(tmp_path: Path, settings: SearchConfig) -> None:
    tried = []
    for number, seed in enumerate((0, 0, 1)):
        world = World(tmp_path / str(number), parabola)
        assert world.run(SPACE, replace(settings, seed=seed)) == 0
        whole = [tuple(sorted(values.items())) for values in world.ran]
        assert len(set(whole)) == len(whole)
        tried.append(whole)
    assert tried[0] == tried[1] != tried[2]


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_a_space_that_is_exhausted_ends_the_search(tmp_path: Path, method: str) -> None:
    world = World(tmp_path, parabola)
    assert world.run(SPACE, SearchConfig(method, trials=50, startup_trials=4)) == 0
    assert len(set(points(world))) == len(world.ran) == 15
    assert "the space is exhausted: all of its 15 points were tried" in world.said
    assert "winner, with the least latency_ms" in world.said
    winner = table_of(world)["jobs"][table_of(world)["search"]["winner"]]
    assert winner["figures"]["latency_ms"] == 1.0


def test_no_trial_is_begun_after_the_time(tmp_path: Path) -> None:
    now = [0.0]
    world = World(tmp_path, parabola)
    settings = SearchConfig("random", trials=None, minutes=2)
    config = replace(base_config(), search=settings)
    check = world.check(settings)
    search = RandomSearch(
        Setting("id", config, space_of(parse(SPACE)), check, lambda record: None, clock=lambda: now[0])
    )
    assert len(search.ask(2)) == 2 and search.expected() == 15
    now[0] = 121.0
    assert search.ask(2) == [] and search.expected() == 2
    assert search.ending() == "search.minutes=2 are over after 2 trials"


def test_a_value_that_cannot_be_had_is_told_before_anything_is_written(tmp_path: Path) -> None:
    world = World(tmp_path, parabola)
    with pytest.raises(UserError, match="no such value"):
        world.run(["x=a,no", "y=1,2"], RANDOM)
    with pytest.raises(ConfigError, match="nothing to search"):
        world.run(["x=a"], RANDOM)
    with pytest.raises(ConfigError, match="sets y, which the search varies"):
        world.run(SPACE, replace(HALVING, rungs=(Rung(("y=1",), 0.5),)))
    with pytest.raises(ConfigError, match="has several values"):
        world.run(SPACE, replace(HALVING, rungs=(Rung(("effort=1,2",), 0.5),)))
    with pytest.raises(ConfigError, match="the space has no end"):
        world.run(["x=interval(0,1)"], replace(HALVING, trials=None))
    assert list(tmp_path.iterdir()) == [] and world.ran == []


def test_values_that_do_not_go_together_fail_that_trial(tmp_path: Path) -> None:
    world = World(tmp_path, lambda values: Figures())
    assert world.run(["x=b,a", "y=1,no"], replace(RANDOM, trials=None)) == 0
    assert len(world.ran) == 3
    jobs = table_of(world)["jobs"]
    assert [job["reason"] for job in jobs if job["status"] == "error"] == ["x: there is no such value"]


def test_points_that_resolve_to_the_same_config_run_once(tmp_path: Path) -> None:
    for jobs in (1, 3):
        world = World(tmp_path / str(jobs), lambda values: Figures(), jobs=jobs, same=lambda values: {"x": values["x"]})
        assert world.run(SPACE, replace(RANDOM, trials=None)) == 0
        assert sorted(values["x"] for values in world.ran) == ["a", "b", "c"]
        assert len(table_of(world)["jobs"]) == 15


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, parabola, dry_run=True)
    assert world.run(SPACE, RANDOM) == 0
    assert world.ran == [] and list(tmp_path.iterdir()) == []
    assert "6 jobs: 6 would run, 0 would be skipped" in world.said
    halving = World(tmp_path, parabola, dry_run=True)
    assert halving.run(SPACE, HALVING) == 0
    assert "8 jobs: 8 would run, 0 would be skipped; then up to 5 more, chosen by what these give" in halving.said


# ---- what wins ---------------------------------------------------------------------------------


def figures_by_x(**by_x: Figures):
    return lambda values: by_x[values["x"]]


def test_what_is_wrong_or_beyond_a_limit_never_wins(tmp_path: Path) -> None:
    measure = figures_by_x(
        wrong=Figures(0.1, status="failed"),
        crash=Figures(0.1, status="crashed"),
        large=Figures(0.2, peak_mib=5000),
        good=Figures(2.0, error_ratio=1.5),
        better=Figures(1.0, error_ratio=1.9),
    )
    world = World(tmp_path, measure)
    goals = {"latency_ms": "minimize", "error_ratio": {"max": 2.0}, "peak_mib": {"max": 4096}}
    code = world.run(["x=wrong,crash,large,good,better"], SearchConfig("random", goals=goals))
    assert code == 0  # a search has found what it was to find, whatever failed on the way
    whole = table_of(world)
    place = {job["overrides"][0]: job["place"] for job in whole["jobs"]}
    assert place == {
        "x=wrong": "no right result",
        "x=crash": "no right result",
        "x=large": "peak_mib 5000 > 4096",
        "x=good": "",
        "x=better": "winner",
    }
    assert whole["search"]["front"] == [whole["search"]["winner"]]
    assert (world.newest / "winner.yaml").read_text() == f"# {whole['search']['winner']}\n"
    assert f"python run.py recipe={world.newest / 'winner.yaml'}" in world.said
    rows = list(csv.DictReader((world.newest / "trials.csv").open()))
    assert {row["job"]: row["latency_ms"] for row in rows}["x=better"] == "1.0"
    assert {row["job"]: row["place"] for row in rows}["x=better"] == "winner"


def test_several_objectives_have_a_front_and_the_first_one_decides(tmp_path: Path) -> None:
    measure = figures_by_x(
        fast=Figures(1.0, peak_mib=300), middle=Figures(2.0, peak_mib=200), small=Figures(3.0, peak_mib=100),
        worse=Figures(3.0, peak_mib=250),
    )  # fmt: skip
    for first, wins in (("latency_ms", "x=fast"), ("peak_mib", "x=small")):
        world = World(tmp_path / first, measure)
        goals = dict.fromkeys([first, "latency_ms", "peak_mib"], "minimize")
        assert world.run(["x=fast,middle,small,worse"], SearchConfig("random", goals=goals)) == 0
        whole = table_of(world)
        place = {job["overrides"][0]: job["place"] for job in whole["jobs"]}
        assert place.pop(wins) == "winner" and place.pop("x=worse") == "" and set(place.values()) == {"front"}
        assert f"winner, with the least {first} of the Pareto front" in world.said
        page = (world.newest / "report.html").read_text()
        parser = Checked()
        parser.feed(page)
        assert parser.open == [] and "Pareto front" in page and "<h2>Search</h2>" in page
        assert "http://" not in page and "https://" not in page


def test_a_search_without_a_winner_fails_and_says_what_was_nearest(tmp_path: Path) -> None:
    goals = {"peak_mib": {"max": 10}}
    world = World(tmp_path, figures_by_x(a=Figures(peak_mib=30), b=Figures(peak_mib=20), c=Figures(status="crashed")))
    assert world.run(["x=a,b,c"], SearchConfig("random", goals=goals)) == 1
    assert "no winner: no trial meets the goals; the nearest" in world.said and "peak_mib 20 > 10" in world.said
    assert not (world.newest / "winner.yaml").exists()
    assert (world.newest / "report.html").exists()


# ---- TPE ---------------------------------------------------------------------------------------


def test_tpe_goes_where_trials_are_good_and_away_from_where_they_fail(tmp_path: Path) -> None:
    def measure(values) -> Figures:
        x = float(values["x"])
        return Figures(1 + (math.log10(x) + 2) ** 2, status="crashed" if values["y"] == "bad" else "passed")

    world = World(tmp_path, measure)
    overrides = ["x=tag(log,interval(1e-6,1))", "y=good,bad"]
    assert world.run(overrides, replace(TPE, trials=40)) == 0
    later = world.ran[20:]
    assert sum(values["y"] == "good" for values in later) >= 15
    assert sum(abs(math.log10(float(values["x"])) + 2) < 1 for values in later) >= 12  # a third of the space
    best = table_of(world)["jobs"][table_of(world)["search"]["winner"]]
    assert best["figures"]["latency_ms"] < 1.1


def test_tpe_takes_several_objectives(tmp_path: Path) -> None:
    goals = {"latency_ms": "minimize", "peak_mib": "maximize", "error_ratio": {"max": 2.0}}

    def measure(values) -> Figures:
        y, status = int(values["y"]), "failed" if values["x"] == "c" else "passed"
        return Figures(float(y), peak_mib=float(y), error_ratio=y / 2, status=status)

    world = World(tmp_path, measure, jobs=3)
    assert world.run(SPACE, replace(TPE, goals=goals, trials=15)) == 0
    whole = table_of(world)
    front = {tuple(whole["jobs"][number]["overrides"]) for number in whole["search"]["front"]}
    assert front == {(f"x={x}", f"y={y}") for x in "ab" for y in range(1, 5)}


def test_tpe_without_optuna_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r'pip install "torchweld\[search\]"'):
        World(tmp_path, parabola).run(SPACE, TPE)


# ---- successive halving ------------------------------------------------------------------------


def test_the_best_of_each_rung_go_on_and_the_last_are_measured_in_full(tmp_path: Path) -> None:
    """Of eight, four and then one: the cheap figures are right but for y=1, which looks best and crashes in rung 2."""

    def measure(values) -> Figures:
        y, effort = int(values["y"]), values.get("effort", "full")
        if y == 1:
            return Figures(0.1, status="passed" if effort == "1" else "crashed")
        return Figures(float(y) / (1 if effort == "full" else 10), error_ratio=3.0 if y == 2 else 1.0)

    world = World(tmp_path, measure)
    settings = replace(HALVING, goals={"latency_ms": "minimize", "error_ratio": {"max": 2.0}})
    assert world.run(["y=range(1,9)"], settings) == 0
    rungs = [
        [int(values["y"]) for values in world.ran if values.get("effort") == effort] for effort in ("1", "2", None)
    ]
    assert sorted(rungs[0]) == list(range(1, 9))
    assert rungs[1] == [1, 3, 4, 5]  # 2 breaks a limit, and so comes after all others
    assert rungs[2] == [3]
    jobs = table_of(world)["jobs"]
    assert [job["place"] for job in jobs] == ["rung 1 of 3"] * 8 + ["rung 2 of 3"] * 4 + ["winner"]
    assert jobs[-1]["figures"]["latency_ms"] == 3.0
    # What was measured cheaply is not set against what was not; a failure is told all the same.
    shown = runs_in(world.newest)
    assert [(run.status, run.latency_ms) for run in shown] == [("crashed", None), ("passed", 3.0)]


def test_halving_ends_where_nothing_is_right(tmp_path: Path) -> None:
    world = World(tmp_path, lambda values: Figures(status="crashed"))
    assert world.run(SPACE, HALVING) == 1
    assert len(world.ran) == 8
    assert "no trial of rung 1 came to a right result" in world.said
    assert "no winner: no trial was measured in full" in world.said


# ---- after a kill ------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("settings", [RANDOM, replace(TPE, trials=14), HALVING], ids=["random", "tpe", "halving"])
def test_a_search_that_was_killed_goes_on(tmp_path: Path, settings: SearchConfig, jobs: int) -> None:
    """Nothing that had ended runs again; with one job at a time the search is the one that was not killed."""

    def measure(values) -> Figures:
        return Figures(status="crashed") if values["y"] == "2" else parabola(values)

    whole = World(tmp_path / "whole", measure, jobs=jobs, newest_first=True)
    assert whole.run(SPACE, settings) == 0
    world = World(tmp_path / "killed", measure, kill_after=2, jobs=jobs, newest_first=True)
    while True:
        try:
            code = world.run(SPACE, settings)
            break
        except Killed:
            world.kill_after += 3
    assert code == 0
    ran = [tuple(sorted(values.items())) for values in world.ran]
    once = [tuple(sorted(values.items())) for values in whole.ran]
    if jobs == 1:
        assert ran == once
        assert [job["status"] for job in table_of(world)["jobs"]] == [job["status"] for job in table_of(whole)["jobs"]]
        assert table_of(world)["search"] == table_of(whole)["search"]
    done = [json.loads(path.read_text()) for path in tmp_path.glob("killed/day/*/*/job.json")]
    assert len({record["key"] for record in done}) == len(done)
    assert len(table_of(world)["jobs"]) == len(once)


def test_more_trials_go_on_from_those_that_were(tmp_path: Path) -> None:
    world = World(tmp_path, parabola)
    assert world.run(SPACE, replace(TPE, trials=5)) == 0
    assert world.run(SPACE, replace(TPE, trials=8)) == 0
    assert len(set(points(world))) == len(world.ran) == 8
    assert [job["kept"] for job in table_of(world)["jobs"]] == [True] * 5 + [False] * 3


def test_failed_trials_run_again_where_the_user_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, figures_by_x(a=Figures(), b=Figures(status="crashed")))
    settings = replace(RANDOM, trials=None)
    for rerun, expected in ((None, ["a", "b"]), (None, []), ("failed", ["b"]), ("all", ["a", "b"])):
        world.rerun, world.ran = rerun, []
        world.run(["x=a,b"], settings)
        assert sorted(values["x"] for values in world.ran) == expected


def test_a_disk_that_is_full_does_not_end_a_search(tmp_path: Path, monkeypatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pipeline.search.trials.write_whole", full)
    world = World(tmp_path, parabola)
    assert world.run(SPACE, RANDOM) == 0
    assert len(world.ran) == 6
    assert "what was tried could not be written down (No space left on device)" in world.said
