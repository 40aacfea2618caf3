"""Slower or not: the verdict by intervals known by hand, and the exit codes of the command."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.commands import check_regression
from pipeline.commands.check_regression import main, tolerance
from pipeline.config import Config
from pipeline.recipe import EngineRecord, Interval, Recipe, Results, ValidationRecord, recipe_of, write
from pipeline.report.regression import judge
from stages.benchmark.statistics import Ratio, interval_of_median, quotient
from stages.ir.errors import UserError


def results(median: float, share: float = 1.01, speedup: float = 2.0, rounds: int = 20) -> Results:
    """Ours takes `median` ms, from median / share to median * share, and so the speed-up."""
    ours = EngineRecord(around(median, share), around(speedup, share))
    return Results("passed", ValidationRecord(True, 1.0), "eager", rounds, "", {"torchweld": ours})


def around(value: float, share: float) -> Interval:
    return Interval(value, value / share, value * share)


# ---- the interval of a ratio ---------------------------------------------------------------


def test_the_quotient_of_two_intervals_by_hand() -> None:
    # Equal and symmetrical in the logarithm: the half widths add like the sides of a square.
    ratio = quotient(Ratio(12.0, 12.0 / 1.1, 12.0 * 1.1), Ratio(10.0, 10.0 / 1.1, 10.0 * 1.1))
    width = 1.1 ** math.sqrt(2.0)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.2, 1.2 / width, 1.2 * width))
    # A divisor that is known exactly only scales the interval, which need not be symmetrical.
    ratio = quotient(Ratio(10.0, 9.0, 13.0), Ratio(5.0, 5.0, 5.0))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 1.8, 2.6))
    # 3-4-5: the low end has the low half of the dividend and the high half of the divisor.
    ratio = quotient(Ratio(1.0, math.exp(-3), math.exp(8)), Ratio(1.0, math.exp(-15), math.exp(4)))
    assert (math.log(ratio.low), math.log(ratio.high)) == pytest.approx((-5.0, 17.0))


def test_the_interval_of_a_median_lies_among_the_samples() -> None:
    interval = interval_of_median([1.0, 2.0, 3.0, 4.0, 100.0] * 20)
    assert interval.value == 3.0 and 2.0 <= interval.low <= 3.0 <= interval.high <= 4.0


# ---- the verdict ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "now", "tolerated", "regressed", "unclear"),
    [
        (results(10.0), results(11.0), 0.05, True, False),  # 1.10 in [1.085, 1.116]
        (results(10.0), results(10.6), 0.05, False, True),  # 1.06 in [1.045, 1.075]: the point alone is beyond 5 %
        (results(10.0), results(10.6), 0.04, True, False),
        (results(10.0), results(10.0), 0.05, False, False),
        (results(10.0), results(8.0), 0.05, False, False),
        (results(10.0, 1.2), results(12.0, 1.2), 0.05, False, True),  # 1.20 in [0.93, 1.55]
        (results(10.0), results(11.0), 0.20, False, False),
    ],
)
def test_only_an_interval_beyond_the_tolerance_is_a_slowdown(
    then: Results, now: Results, tolerated: float, regressed: bool, unclear: bool
) -> None:
    verdict = judge(then, now, "latency", tolerated)
    assert (verdict.regressed, verdict.unclear) == (regressed, unclear)
    width = (now.engines["torchweld"].latency_ms.high / now.engines["torchweld"].latency_ms.value) ** math.sqrt(2.0)
    point = now.engines["torchweld"].latency_ms.value / then.engines["torchweld"].latency_ms.value
    assert (verdict.slowdown.low, verdict.slowdown.high) == pytest.approx((point / width, point * width))


def test_by_speed_up_a_smaller_one_is_slower() -> None:
    verdict = judge(results(10.0, speedup=2.0), results(99.0, speedup=1.6), "speedup", 0.05)
    assert verdict.slowdown.value == pytest.approx(1.25) and verdict.regressed
    assert not judge(results(10.0, speedup=2.0), results(99.0, speedup=2.5), "speedup", 0.05).regressed


def test_what_cannot_be_judged() -> None:
    with pytest.raises(UserError, match="the run was timed in 5 rounds, too few"):
        judge(results(10.0), results(10.0, rounds=5), "latency", 0.05)
    with pytest.raises(UserError, match="the baseline has no latency"):
        judge(Results("passed"), results(10.0), "latency", 0.05)
    with pytest.raises(UserError, match="the run over inductor"):
        judge(results(10.0), replace(results(10.0), baseline="inductor"), "speedup", 0.05)
    wrong_way = {"torchweld": EngineRecord(Interval(10.0, 11.0, 9.0))}
    with pytest.raises(UserError, match="no interval of a time"):
        judge(replace(results(10.0), engines=wrong_way), results(10.0), "latency", 0.05)


# ---- the command ---------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe(config: Config, results: Results | None, device: str = "cpu: x") -> Recipe:
    return recipe_of(config, [], {"torch": "2"}, device, "random", results)


def judged(config: Config, then: Results | None, now: Results | None, *more: str, device: str = "cpu: x") -> int:
    """The exit code for a run in the folder `run` against the baseline `then.yaml`."""
    Path("run").mkdir(exist_ok=True)
    write(Path("then.yaml"), recipe(config, then))
    write(Path("run/recipe.yaml"), recipe(config, now, device))
    return main(["--baseline", "then.yaml", "--run", "run", *more])


def test_exit_codes(here: Path, config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(config, results(10.0), results(10.1)) == 0
    assert "not slower than the baseline by more than 5.0%" in capsys.readouterr().out
    assert judged(config, results(10.0), results(11.0)) == 1
    assert "slower than the baseline by more than 5.0%: 1.10 [1.08, 1.12] × its time" in capsys.readouterr().out
    assert judged(config, results(10.0), results(11.0), "--tolerance", "20%") == 0
    assert judged(config, results(10.0), results(10.6)) == 0
    assert "benchmark=thorough makes it narrower" in capsys.readouterr().out
    wrong = Results("failed", ValidationRecord(False, 9.0, ("output 0 is wrong",)))
    assert judged(config, results(10.0), wrong) == 1
    assert "the result is wrong: output 0 is wrong" in capsys.readouterr().out


def test_trouble_is_told_and_exits_2(here: Path, config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(config, Results("failed"), results(10.0)) == 2
    assert judged(config, None, results(10.0)) == 2
    assert judged(config, results(10.0), None) == 1
    assert main(["--baseline", "nowhere.yaml", "--run", "run"]) == 2
    assert main(["--baseline", "then.yaml", "--run", "run", "benchmark=quick"]) == 2
    assert "cannot be set on a finished run" in capsys.readouterr().err
    for text in ("-5%", "five", "nan"):
        with pytest.raises(SystemExit) as stop:
            main(["--baseline", "then.yaml", f"--tolerance={text}"])
        assert stop.value.code == 2


def test_on_another_device_the_speed_up_is_compared(
    here: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judged(config, results(10.0), results(30.0), device="cpu: y") == 0
    out = capsys.readouterr().out
    assert "the baseline is of cpu: x; this is cpu: y" in out and "by speed-up over eager (2.00 then, 2.00 now)" in out
    assert judged(config, results(10.0), results(30.0), "--by", "latency", device="cpu: y") == 1
    assert judged(config, results(10.0), results(10.0, speedup=1.0), device="cpu: y") == 1
    assert judged(config, results(10.0), results(10.0, speedup=1.0)) == 0, "on the same device times are compared"


def test_tolerances() -> None:
    assert [tolerance(text) for text in ("5%", "0.05", "2.5 %", ".5%", "0")] == pytest.approx(
        [0.05, 0.05, 0.025, 0.005, 0.0]
    )


def test_without_a_run_the_recipe_runs_again(here: Path, config: Config, monkeypatch, capsys) -> None:
    write(Path("then.yaml"), recipe(config, results(10.0)))
    commands, code = [], 0

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        folder = next(text for text in command if text.startswith("hydra.run.dir=")).partition("=")[2].strip('"')
        write(Path(folder) / "recipe.yaml", recipe(config, results(11.0)))
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(check_regression.subprocess, "run", run)
    assert main(["--baseline", "then.yaml", "benchmark=thorough"]) == 1
    assert commands[0][:3] == [sys.executable, "-m", "pipeline.main"]
    assert f'recipe="{here / "then.yaml"}"' in commands[0] and commands[0][-1] == "benchmark=thorough"
    assert "tracking=off" in commands[0]
    assert main(["--baseline", "then.yaml", "tracking=default"]) == 1
    assert "tracking=off" not in commands[1]
    code = 2
    assert main(["--baseline", "then.yaml"]) == 2
    assert "did not run to a right result" in capsys.readouterr().err
