"""Recipes that someone made to do harm: each is refused with the key and the line, and nothing was run or written.

Every one is tried on the command line. What it is after is a file, `canary`, that some of them would make if they were
believed; and the folder that the run is started in must hold nothing new afterwards.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import compose
from pipeline.config import Config
from pipeline.main import main
from pipeline.recipe import KernelRecord, Results, limits, read, recipe_of, write
from pipeline.recipe.reading import MAX_BYTES
from pipeline.sweep.command import checked
from stages.ir.errors import UserError
from stages.ir.schedule import Schedule

CANARY = "canary"
# A module in the folder of the run, where a model of the user's would be found: importing it sings.
EVIL = f"from pathlib import Path\nPath({CANARY!r}).touch()\ndef model(): return lambda x: x\n"
CUSTOM = {"name": "custom", "library": "custom", "inputs": {"x": {"kind": "float", "shape": [1]}}}
MODEL: dict[str, Any] = {"name": "x", "library": "transformers", "architecture": "BertForMaskedLM"}


@pytest.fixture(autouse=True)
def composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same few overrides compose to the same config in every test, and half a second each time."""
    monkeypatch.setattr(compose, "compose", lambda overrides, config_dir=None: _composed(tuple(overrides), config_dir))


_composed = lru_cache(maxsize=8)(compose.compose)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    return tmp_path


@pytest.fixture
def harmless(here: Path, config: Config) -> dict[str, Any]:
    """The values of a good recipe."""
    path = here / "evil.yaml"
    kernel = KernelRecord("sum", "0123456789abcdef", 1, Schedule(vector_width=8).to_dict())
    recipe = recipe_of(config, [], {"torch": "2"}, "cpu: x", "random", Results("passed"))
    write(path, recipe)
    values = yaml.safe_load(path.read_text())
    values["kernels"] = [{"name": kernel.name, "hash": kernel.hash, "launches": 1, "schedule": kernel.schedule}]
    return values


def changed(values: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`values` with dotted keys replaced."""
    for key, value in change.items():
        *path, last = key.split(".")
        inner: Any = values
        for name in path:
            inner = inner[int(name)] if isinstance(inner, list) else inner.setdefault(name, {})
        inner[last] = value
    return values


def refused(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, *more: str) -> str:
    """What is said of `evil.yaml` on the command line, after which nothing but it is there."""
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    monkeypatch.setattr(sys, "argv", ["torchweld", "recipe=evil.yaml", *more])
    assert main() == 2
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before
    assert not (here / CANARY).exists() and "evil" not in sys.modules
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    return said


# What is put into a good recipe, the key and the complaint, and the text that stands in the line that is named.
VALUES: list[tuple[dict[str, Any], str, str]] = [
    # code
    ({"config.model._target_": "os.system"}, "config.model._target_: is not allowed", "_target_"),
    ({"config.model.config._target_": "os.system"}, "config.model.config._target_: is not allowed", "_target_"),
    ({"config.precision": {"_partial_": True}}, "config.precision._partial_: is not allowed", "_partial_"),
    ({"config.model": {**CUSTOM, "path": "evil:model"}}, "config.model.path: 'evil:model' comes from a file", "path:"),
    ({"config.model": {**CUSTOM, "path": "os:system('x')"}}, "config.model.path: 'os:system('x')' is no", "path:"),
    ({"config.model.path": "evil:model"}, "config.model.path: model=minilm takes no path", "path:"),
    ({"config.model.library": "evil"}, "config.model.library: there is no 'evil'", "library:"),
    ({"config.model": {**MODEL, "architecture": "pipelines.pipeline"}}, "architecture: 'pipelines.pip", "architecture"),
    ({"config.rewrite.passes": ["evil.model"]}, "config.rewrite.passes: there is no 'evil.model'", "passes:"),
    ({"config.stages": ["capture", "evil"]}, "config.stages: there is no 'evil'", "stages:"),
    ({"config.trust": ["evil"]}, "config.trust: a recipe cannot set this", "trust:"),
    ({"config.codegen": {"compiler": "./evil.py"}}, "config.codegen: a recipe cannot set this", "codegen:"),
    ({"config.hydra": {"launcher": {"_target_": "evil.model"}}}, "config.hydra.launcher._target_: is not", "_target_"),
    ({"kernels.0.source": 'system("touch canary")'}, "kernels[0].source: there is no such key", "source:"),
    ({"config.model": {**MODEL, "config": {"a": {"auto_map": "evil"}}}}, "a.auto_map: cannot be set", "auto_map"),
    # places and addresses
    ({"config.outputs": "/"}, "config.outputs: a recipe cannot set this", "outputs:"),
    ({"config.tracking": {"uri": "http://evil"}}, "config.tracking: a recipe cannot set this", "tracking:"),
    ({"config.autotune": {"database": "evil.db"}}, "config.autotune: a recipe cannot set this", "autotune:"),
    ({"config.recipe": {"path": "other.yaml"}}, "config.recipe: a recipe cannot set this", "recipe:"),
    ({"config.model.name": "../../up"}, "config.model.name: '../../up' is no plain name", "name:"),
    ({"config.model.subfolder": "../../.."}, "config.model.subfolder: '../../..' is no folder", "subfolder:"),
    ({"config.model": {**MODEL, "pretrained": "http://evil"}}, "pretrained: 'http://evil' is no name", "pretrained:"),
    (
        {"config.model": {**MODEL, "pretrained": "evil/x", "weights": "pretrained"}},
        "weights: the recipe asks",
        "weights:",
    ),
    ({"config.model": {**MODEL, "library": "timm", "architecture": "hf-hub:evil/x"}}, "'hf-hub:evil/x' names", "archi"),
    (
        {"config.model": {**MODEL, "config": {"backbone": "evil/x"}}},
        "config.backbone: 'evil/x' is no plain",
        "backbone",
    ),
    (
        {"config.model": {**MODEL, "config": {"weights_backbone": "DEFAULT"}}},
        "weights_backbone: cannot be",
        "weights_b",
    ),
    ({"config.model": {**MODEL, "config": {"checkpoint_path": "evil.pt"}}}, "checkpoint_path: cannot be", "checkpoint"),
    ({"config.model.call": {"x": "../evil"}}, "config.model.call.x: '../evil' is no plain word", "evil"),
    # what is looked up when it is read
    ({"config.model.name": "${oc.env:HOME}"}, "config.model.name: interpolations are not allowed", "oc.env"),
    ({"config.model.config": {"a": [{"b": "${now:%Y}"}]}}, "config.a[0].b: interpolations are not", "now:"),
    ({"device": "${device.kind}"}, "device: interpolations are not allowed", "device.kind"),
    ({"config.model.follow": {"batch": "name"}}, "config.model.batch: wants a whole number, not 'minilm'", "batch:"),
    ({"config.model.follow": {"batch": "evil.model"}}, "config.model.follow.batch: leads nowhere", "evil.model"),
    # too much
    ({"config.model.batch": 1 << 40}, "config.model.batch: 1099511627776 is out of bounds", "batch:"),
    ({"config.model.inputs.input_ids.shape": [1 << 20, 1 << 20]}, "input_ids.shape: [1048576, 1048576]", "shape:"),
    ({"config.benchmark.resamples": 1 << 30}, "config.benchmark.resamples: 1073741824 is out", "resamples:"),
    ({"config.benchmark.max_seconds": 1e300}, "config.benchmark.max_seconds: 1e+300 is out of bounds", "max_seconds:"),
    ({"config.benchmark.min_seconds": float("nan")}, "min_seconds: nan is no number", "min_seconds:"),
    ({"config.device.threads": 1 << 20}, "config.device.threads: 1048576 is out of bounds", "threads:"),
    ({"kernels.0.schedule.unroll": 1 << 20}, "kernels[0].schedule.unroll: 1048576 is no size", "unroll:"),
    ({"kernels.0.schedule.unroll": -1}, "kernels[0].schedule.unroll: -1 is no size", "unroll:"),
    ({"kernels.0.schedule.unroll": True}, "kernels[0].schedule.unroll: True is no size", "unroll:"),
    ({"kernels.0.schedule.persistent": 1}, "kernels[0].schedule.persistent: 1 is no size", "persistent:"),
    ({"kernels.0.schedule.unroll": "system('x')"}, "kernels[0].schedule.unroll: wants a whole number", "unroll:"),
    ({"kernels.0.schedule.tiel": 4}, "kernels[0].schedule.tiel: there is no such key\n  did you mean 'tile'?", "tiel:"),
    # what would deceive who reads it
    ({"device": "cpu\x1b[2J"}, "device: has characters that do not print", "device:"),
    ({"kernels.0.name": "sum\u202e"}, "kernels[0].name: has characters that do not print", "sum"),
    ({"config.model.batch": "many"}, "config.model.batch: wants a whole number", "batch:"),
    ({"config.model": 3}, "config.model: wants keys and values", "model: 3"),
    ({"config.modle": {}}, "config.modle: a recipe cannot set this\n  did you mean 'model'?", "modle:"),
    ({"config.model.nmae": "x"}, "config.model.nmae: there is no such key\n  did you mean 'name'?", "nmae:"),
    ({"kernels": "none"}, "kernels: wants a list", "kernels:"),
    ({"results": {"status": "perfect"}}, "results.status: there is no 'perfect'", "perfect"),
    ({"format": 99}, "format: 99, but this version reads", "format:"),
    ({"formatt": 1}, "formatt: there is no such key\n  did you mean 'format'?", "formatt:"),
]


@pytest.mark.parametrize(("change", "said", "line"), VALUES, ids=[said for _, said, _ in VALUES])
def test_values_that_do_harm(
    here: Path, harmless: dict[str, Any], monkeypatch, capsys, change: dict[str, Any], said: str, line: str
) -> None:
    text = yaml.safe_dump(changed(harmless, change), width=1000)
    (here / "evil.yaml").write_text(text)
    message = refused(here, monkeypatch, capsys, *(["model.name=minilm"] if "follow" in str(change) else []))
    assert said in message
    number = int(message.split("recipe=evil.yaml, line ")[1].split(":")[0])
    assert line in text.splitlines()[number - 1]


TEXTS = [
    ("!!python/object/apply:os.system ['touch canary']", "line 1: tags are not allowed"),
    ("format: !!python/name:os.system", "line 1: tags are not allowed"),
    ("a: 1\nb: !!binary aGk=", "line 2: tags are not allowed"),
    ("a: &a [1]\nb: *a", "line 1: anchors and aliases are not allowed"),
    ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]", "line 1: anchors and aliases are not allowed"),
    ("config:\n  <<: {outputs: /}", "line 2: a key that is no text"),
    ("format: 2\ndevice: a\ndevice: b", "line 3: 'device' is there twice"),
    ("? [a, b]\n: 1", "line 1: a key that is no text"),
    ("1: 1", "line 1: a key that is no text"),
    ("device: 2026-01-01", "line 1: '2026-01-01' is neither text, number"),
    ("a: " + "[" * 50_000, "nest"),
    ("a: " + "{a: " * 100 + "1" + "}" * 100, "line 1: nested deeper than"),
    ("format: " + "9" * 5000, "line 1: a text of more than"),
    ("format: " + "9" * 4000, "line 1: format: 9999"),
    ("a: [unclosed", "is no recipe"),
    ("- a\n- b", "wants keys and values"),
    ("just text", "wants keys and values"),
    ("", "wants keys and values"),
    ("format: 2\n---\nformat: 2", "is no recipe"),
    ("a: \x00", "is no recipe"),
    ("kernels: [" + "0," * limits.MAX_EVENTS + "]", f"line 1: a recipe has at most {limits.MAX_EVENTS} keys"),
    ("x" * (MAX_BYTES + 1), "larger than 2 MiB"),
]


@pytest.mark.parametrize(("text", "said"), TEXTS, ids=[said for _, said in TEXTS])
def test_files_that_do_harm(here: Path, monkeypatch, capsys, text: str, said: str) -> None:
    (here / "evil.yaml").write_text(text)
    assert said in refused(here, monkeypatch, capsys)


def pipe(path: Path) -> None:
    os.mkfifo(path)


FILES: list[tuple[Callable[[Path], object], str]] = [
    (pipe, "it is no file"),  # reading it would wait for ever
    (lambda path: path.symlink_to("/dev/zero"), "it is no file"),  # this would never end
    (lambda path: path.write_bytes(b"\xff\xfe\x00"), "it is no text"),
    (lambda path: path.symlink_to("nowhere"), "No such file"),
]


@pytest.mark.parametrize(("make", "said"), FILES, ids=["pipe", "device", "binary", "broken link"])
def test_what_is_no_text_file(here: Path, make: Callable[[Path], object], said: str) -> None:
    make(here / "evil.yaml")
    with pytest.raises(UserError, match=said):
        read(here / "evil.yaml")


def test_the_users_own_word_lets_code_in(here: Path, harmless: dict[str, Any], monkeypatch, capsys) -> None:
    values = changed(harmless, {"config.model": {**CUSTOM, "path": "evil:model"}})
    (here / "evil.yaml").write_text(yaml.safe_dump(values))
    assert "if you trust it, add trust=[evil]" in refused(here, monkeypatch, capsys, "trust=[other]")
    monkeypatch.setattr(sys, "argv", ["torchweld", "recipe=evil.yaml", "trust=[evil]", "--cfg", "job"])
    assert main() == 0
    assert (here / CANARY).exists()  # it is imported, to see whether it is there
    del sys.modules["evil"]


def test_as_a_job_of_a_sweep(here: Path, harmless: dict[str, Any]) -> None:
    (here / "evil.yaml").write_text(yaml.safe_dump(changed(harmless, {"config.outputs": "/"})))
    with pytest.raises(UserError, match=r"config.outputs: a recipe cannot set this"):
        checked(["recipe=evil.yaml", "precision=amp"], None)
