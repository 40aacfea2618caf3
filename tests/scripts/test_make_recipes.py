"""The recipes that come with the program: what is made, and when nothing is."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.compose import compose
from pipeline.config import Config
from pipeline.configure import configuration
from pipeline.recipe import EngineRecord, Interval, Results, read, recipe_of, write
from scripts import make_recipes
from scripts.make_recipes import main, table
from tests.pipeline.conftest import config

__all__ = ["config"]


def test_names_and_what_they_stand_for() -> None:
    assert list(table("cpu")) == ["bert_fp32_cpu", "resnet50_fp32_cpu", "vit_fp32_cpu", "gpt2_fp32_cpu"]
    assert list(table("h200")) == ["bert_amp_h200", "resnet50_amp_h200", "vit_amp_h200", "gpt2_amp_h200"]
    overrides = table("h200")["vit_amp_h200"]
    made = configuration(compose(overrides), overrides)[0]
    assert (made.model.name, made.precision.mode, made.device.kind, made.model.weights) == (
        *("vit", "amp", "cuda", "random"),
    )
    assert made.autotune.trials > 1 and not made.tracking.enabled


def test_a_right_run_on_a_quiet_machine_becomes_a_recipe(tmp_path: Path, config: Config, monkeypatch, capsys) -> None:
    engines = {"torchweld": EngineRecord(Interval(1.0, 0.9, 1.1))}
    results, code = Results("passed", None, "eager", 20, "", engines), 0

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        folder = Path(command[-1].partition("=")[2])
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "recipe.yaml", recipe_of(config, [], {}, "cpu: x", "random", results))
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(make_recipes.subprocess, "run", run)
    monkeypatch.setattr(make_recipes, "FOLDER", tmp_path / "recipe")
    arguments = ["--device", "cpu", "bert_fp32_cpu", "--runs", str(tmp_path)]
    made = tmp_path / "recipe" / "bert_fp32_cpu.yaml"

    results = replace(results, load="other processes kept 1.9 CPUs busy")
    assert main(arguments) == 1 and not made.exists()
    assert "its figures are worth little: other processes kept 1.9 CPUs busy" in capsys.readouterr().err
    results, code = replace(results, load=""), 1
    assert main(arguments) == 1 and not made.exists()
    code = 0
    assert main(arguments) == 0
    assert read(made).results == results
    assert made.read_text().startswith("# bert_fp32_cpu, tuned for cpu: x.  torchweld recipe=bert_fp32_cpu\n")
    assert main(["--device", "h200", "bert_fp32_cpu"]) == 2
    with pytest.raises(SystemExit):
        main(["--device", "tpu"])
