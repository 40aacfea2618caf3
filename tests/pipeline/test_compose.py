"""Composition: every choice of every group, and what is said of what is not there."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from pipeline.compose import compose, jobs_of, values_of
from pipeline.config import GROUPS, Config, from_values
from pipeline.configure import as_lines, configuration
from stages.ir.errors import ConfigError, UserError

CONF = Path(__file__).parents[2] / "conf"
CHOICES = [(folder.name, file.stem) for folder in sorted(CONF.iterdir()) for file in sorted(folder.glob("*.yaml"))]
# What a choice needs beside its name.
BESIDE = {"custom": ["model.path=package.module:factory", "+model.inputs.x={kind: float, shape: [1, 8]}"]}


def config_of(*overrides: str) -> Config:
    return configuration(compose(overrides), overrides)[0]


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_of_every_group_composes(group: str, choice: str) -> None:
    config = config_of(f"{group}={choice}", *BESIDE.get(choice, []))
    assert config.stages[0] == "capture"


def test_every_group_has_a_folder_and_every_folder_is_a_group() -> None:
    assert {group for group, _ in CHOICES} == {*GROUPS, "recipe"}  # a recipe is chosen like them, and read by us


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in ("model", "experiment")])
def test_the_keys_of_a_choice_are_those_of_the_schema(group: str) -> None:
    """All of them are written down, so that each can be overridden without a '+'."""
    known = {field.name for field in fields(get_type_hints(Config)[group])}
    for file in (CONF / group).glob("*.yaml"):
        values = yaml.safe_load(file.read_text())
        assert set(values) | set(_inherited(file, values)) == known | ({"defaults"} & set(values)), file


def _inherited(file: Path, values: dict) -> dict:
    """Keys of the choices that a file begins with, by its defaults list."""
    found: dict = {}
    for entry in values.get("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            found |= yaml.safe_load((file.parent / f"{entry}.yaml").read_text())
    return found


def test_the_defaults() -> None:
    config = config_of()
    assert (config.model.name, config.precision.mode, config.job) == ("minilm", "fp32", "minilm-fp32")
    assert config.model.inputs["input_ids"].shape == (8, 32)


def test_sizes_reach_the_inputs() -> None:
    config = config_of("model=bert", "model.batch=4", "model.sequence=64")
    assert config.model.inputs["input_ids"].shape == (4, 64)
    assert config.model.inputs["input_ids"].high == 30522


@pytest.mark.parametrize(
    ("overrides", "key", "said"),
    [
        (["precison=amp"], "precison", "did you mean 'precision'?"),
        (["precision=apm"], "precision", "did you mean 'amp'?"),
        (["model=brt"], "model", "did you mean 'bert'?"),
        (["fusion.max_ops=-1"], "fusion.max_ops", "-1"),
        (["fusion.max_ops=many"], "fusion.max_ops", "wants a whole number, not 'many'"),
        (["fusion.maxops=3"], "fusion.maxops", "did you mean 'max_ops'?"),
        (["+foo=1"], "foo", "there is no such group or key"),
        (["++foo.bar=1"], "foo", "there is no such group or key"),
        (["+precision=amp"], "precision", "has nothing to add"),
        (["+fusion.max_ops=3"], "fusion.max_ops", "has nothing to add"),
        (["~fusion"], "fusion", "'~' takes nothing away"),
        (["model@other=bert"], "model", "moves nothing"),
        (["model=null"], "model", "there is no 'null'"),
        (["fusion={max_ops: 3}"], "fusion", "wants the name of a choice"),
        (["seed=1.5"], "seed", "wants a whole number"),
        (["seed=-1"], "seed", "is not between"),
        (["debug=maybe"], "debug", "wants true or false"),
        (["seed.deep=1"], "seed", "has no keys"),
        (["model=bert,gpt2"], "model", "several values"),
        (["model=resnet50", "model.sequence=4"], "model.sequence", "does not have it"),
        (["model.config.extra=1"], "model.config.extra", "+model.config.extra=1"),
        (["model.batch=${nope}"], "model.batch", "nope"),
        (["model.batch=0"], "model.batch", "at least 1"),
        (["model.weights=auot"], "model.weights", "did you mean 'auto'?"),
        (["model=bert", "model.inputs.input_ids.kind=tokens"], "model.inputs.input_ids.kind", "token_ids"),
        (["model=bert", "model.inputs.input_ids.dtype=int65"], "model.inputs.*.dtype", "did you mean 'int64'?"),
        (["model=custom"], "model.path", "is missing"),
        (["model=custom", "model.path=nocolon"], "model.path", "no import path"),
        (["model=vit", "+model.path=a:b"], "model.path", "takes no path"),
        (["model=vit", "+model.config.checkpoint_path=/x"], "model.config.checkpoint_path", "cannot be set"),
        (["model=vit", "model.architecture=hf-hub:evil/x"], "model.architecture", "names nothing"),
        (["model=bert", "model.pretrained=../../x"], "model.pretrained", "no name of a model"),
        (["engine.peers=[eager,inductr]"], "engine.peers", "did you mean 'inductor'?"),
        (["stages=[capture]"], "stages", "is missing"),
        (["job=../up"], "job", "no plain name"),
        (["experiment=nope"], "experiment", "there is no 'nope'"),
        (["device=gpu"], "device", "there is no 'gpu'"),
        (["hydra.foo=1"], "hydra.foo", "Hydra has no such key"),
    ],
)
def test_bad_overrides_are_named_with_the_mend(overrides: list[str], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(*overrides)
    assert caught.value.key == key
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["amp", "=amp", "precision=[", "precision"])
def test_what_is_no_override_is_quoted(text: str) -> None:
    with pytest.raises(UserError, match="cannot read") as caught:
        config_of(text)
    assert f"'{text}'" in str(caught.value)


def test_trust_is_the_word_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /model: custom\nmodel:\n  path: evil:f\n"
    text += "  inputs: {x: {kind: float, shape: [1]}}\n"
    (tmp_path / "experiment" / "theirs.yaml").write_text(text)
    (tmp_path / "experiment" / "bold.yaml").write_text(text + "trust: [evil]\n")

    def config(*overrides: str) -> Config:
        return configuration(compose(overrides, str(tmp_path)), overrides)[0]

    with pytest.raises(ConfigError, match="would run code of 'evil'"):
        config("experiment=theirs")
    with pytest.raises(ConfigError, match="on the command line only"):
        config("experiment=bold")
    assert config("experiment=theirs", "trust=[evil]").model.path == "evil:f"
    assert config("experiment=theirs", "model.path=mine:f").model.path == "mine:f"


def test_a_sweep_is_every_combination() -> None:
    assert jobs_of(["model=bert,gpt2", "precision=fp32,amp", "seed=1"]) == [
        [f"model={model}", f"precision={precision}", "seed=1"]
        for model in ("bert", "gpt2")
        for precision in ("fp32", "amp")
    ]


def test_overrides_from_a_dictionary() -> None:
    lines = as_lines(
        {"precision": "amp", "debug": True, "recipe": None, "trust": ["a"], "tracking.uri": 'http://x/"y"'}
    )
    assert lines == ["precision=amp", "debug=true", "recipe=null", "trust=[a]", 'tracking.uri="http://x/\\"y\\""']
    assert config_of(*lines).tracking.uri == 'http://x/"y"'
    assert as_lines("precision=amp") == ["precision=amp"]


def test_hydra_of_the_user_is_left_alone() -> None:
    from hydra import compose as their_compose
    from hydra import initialize_config_dir

    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert from_values(values_of(compose(["precision=amp"]))).precision.mode == "amp"
        assert their_compose("config", ["precision=bf16"]).precision.mode == "bf16"
