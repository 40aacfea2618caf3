"""What differs between two recipes, told as diff tells it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.commands.compare import main as compare_runs
from pipeline.commands.diff_recipes import main
from pipeline.config import Config
from pipeline.recipe import (
    EngineRecord,
    Interval,
    KernelRecord,
    Recipe,
    Results,
    ValidationRecord,
    compare,
    recipe_of,
    write,
)
from stages.ir.schedule import Schedule


def results(median: float) -> Results:
    ours = EngineRecord(Interval(median, median * 0.99, median * 1.01), Interval(2.0, 1.9, 2.1), 2048.0, 3.0)
    return Results("passed", ValidationRecord(True, 1.25), "eager", 20, "", {"torchweld": ours})


@pytest.fixture
def one(config: Config) -> Recipe:
    schedule = Schedule(vector_width=8).to_dict()
    kernels = (KernelRecord("sum", "aa", 2, schedule), KernelRecord("gelu", "bb"), KernelRecord("mul", "cc"))
    return replace(
        recipe_of(config, [], {"torch": "2.14", "triton": "3.8"}, "cpu: x", "random", results(10.0)), kernels=kernels
    )


@pytest.fixture
def other(one: Recipe) -> Recipe:
    schedule = Schedule(vector_width=8, unroll=4).to_dict()
    kernels = (KernelRecord("sum", "aa", 3, schedule), KernelRecord("gelu", "bb"), KernelRecord("exp", "dd"))
    changed = {"precision": {**one.config["precision"], "mode": "amp"}, "seed": 7}
    changed["stages"] = [name for name in one.config["stages"] if name != "autotune"]
    return replace(
        one, config={**one.config, **changed}, versions={"torch": "2.13"}, kernels=kernels, results=results(20.0)
    )


def test_every_kind_of_difference(one: Recipe, other: Recipe) -> None:
    assert compare(one, one) == []
    found = [(each.part, each.name, each.one, each.other) for each in compare(one, other)]
    assert found == [
        ("config", "precision.mode", "fp32", "amp"),
        ("config", "stages", str(one.config["stages"]), str(other.config["stages"])),
        ("config", "seed", "0", "7"),
        ("versions", "torch", "2.14", "2.13"),
        ("versions", "triton", "3.8", "–"),
        ("kernels", "kernel sum aa", "launched 2 times", "launched 3 times"),
        ("kernels", "kernel sum aa schedule", "Schedule(vector_width=8)", "Schedule(vector_width=8, unroll=4)"),
        ("kernels", "kernel mul cc", "launched once", "–"),
        ("kernels", "kernel exp dd", "–", "launched once"),
        ("results", "engines.torchweld.latency_ms.value", "10.0", "20.0"),
        ("results", "engines.torchweld.latency_ms.low", "9.9", "19.8"),
        ("results", "engines.torchweld.latency_ms.high", "10.1", "20.2"),
    ]


def test_the_command_and_its_exit_codes(one: Recipe, other: Recipe, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    write(tmp_path / "a.yaml", one)
    write(tmp_path / "run" / "recipe.yaml", other)
    assert main(["a.yaml", "a.yaml"]) == 0
    assert capsys.readouterr().out == "equal in config, versions, device, weights, kernels, results\n"
    assert main(["a.yaml", "run"]) == 1
    out = capsys.readouterr().out
    assert "| config" in out and "| precision.mode" in out and "Schedule(vector_width=8, unroll=4)" in out
    assert "3 differences in config; 2 differences in versions; no differences in device" in out
    assert main(["a.yaml", "run", "--only", "device,weights"]) == 0
    assert main(["a.yaml", "run", "--only", "kernel"]) == 2
    assert "did you mean 'kernels'?" in capsys.readouterr().err
    assert main(["a.yaml", "nowhere.yaml"]) == 2
    assert "recipe=nowhere.yaml cannot be read" in capsys.readouterr().err


def test_recipes_are_compared_as_runs_are(one: Recipe, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "slow.yaml", one)
    write(tmp_path / "fast.yaml", replace(one, results=results(5.0)))
    assert compare_runs(["slow.yaml", "fast.yaml"]) == 0
    out = capsys.readouterr().out
    # 10 ± 1 % over 5 ± 1 %: the widths add like the sides of a square, to 1.4 %.
    assert "| fast " in out and "2.00 [1.97, 2.03]" in out and "1.25 ×" in out and "2.0 KiB" in out
    assert "2 of 2 right" in (tmp_path / "compare.html").read_text()
    assert compare_runs(["slowest"]) == 2
    assert "recipe: there is no 'slowest'" in capsys.readouterr().err
