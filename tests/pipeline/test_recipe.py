"""Recipes: written and read back, compared, and hostile ones refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from pipeline import recipe as recipes
from pipeline.compile import with_schedules
from pipeline.compose import compose
from pipeline.config import Config
from pipeline.configure import configuration, session_of
from stages.ir.dtype import DType
from stages.ir.errors import ConfigError, UserError
from stages.ir.expr import Axis, Buffer, const, load, op, var
from stages.ir.kernel import Kernel, Store
from stages.ir.program import BufferSpec, Launch, Program
from stages.ir.schedule import Schedule


def kernel(factor: float) -> Kernel:
    axis, source, target = Axis("i0", 8), Buffer("in0", DType.FLOAT32, 8), Buffer("out0", DType.FLOAT32, 8)
    value = op("mul", load(source, var(axis)), const(factor, DType.FLOAT32))
    return Kernel(f"times_{factor:g}", (axis,), (), (Store(target, var(axis), value),))


def program(*factors: float, schedule: Schedule | None = None) -> Program:
    names = [f"b{place}" for place in range(len(factors) + 1)]
    specs = {name: BufferSpec(name, torch.float32, 8, "arena") for name in names}
    steps = tuple(
        Launch(kernel(factor), (before, after), schedule) for factor, before, after in zip(factors, names, names[1:])
    )
    return Program(torch.device("cpu"), (), specs, steps, ())


@pytest.fixture
def file(tmp_path: Path, config: Config) -> Path:
    path = tmp_path / "recipe.yaml"
    schedule = Schedule(vector_width=8, unroll=2)
    programs = [program(2.0, 3.0, 2.0, schedule=schedule)]
    recipes.write(path, config, programs, {"torch": "1", "python": "3"}, "cpu: x", "random", {"status": "passed"})
    return path


def test_what_is_written_is_read(file: Path) -> None:
    recipe = recipes.read(file)
    assert [(kernel.name, kernel.launches) for kernel in recipe.kernels] == [("times_2", 2), ("times_3", 1)]
    assert recipe.schedules == {kernel(f).hash: Schedule(vector_width=8, unroll=2) for f in (2.0, 3.0)}
    assert recipe.results == {"status": "passed"}
    assert recipe.config["model"]["name"] == "minilm"
    assert not list(file.parent.glob("*.partial"))


def test_schedules_go_to_the_kernels_of_their_hash() -> None:
    chosen = Schedule(vector_width=4)
    steps = with_schedules(program(2.0, 3.0), {kernel(2.0).hash: chosen}).launches
    assert [step.schedule for step in steps] == [chosen, None]


def test_differences(file: Path) -> None:
    recipe = recipes.read(file)
    same = program(2.0, 3.0, 2.0)
    assert recipes.differences(recipe, [same], {"torch": "1", "python": "3"}, "cpu: x", "random") == []
    lines = recipes.differences(
        recipe, [program(2.0, 5.0)], {"torch": "2", "triton": "3", "python": "3"}, "cpu: y", "random"
    )
    assert lines == [
        "torch: 1 in the recipe, 2 here",
        "triton: not there in the recipe, 3 here",
        "device: 'cpu: x' in the recipe, 'cpu: y' here",
        f"kernel times_3 {kernel(3.0).hash}: only in the recipe",
        f"kernel times_5 {kernel(5.0).hash}: not in the recipe",
        f"kernel times_2 {kernel(2.0).hash}: launched 2 times in the recipe, 1 here",
    ]


def config_of(*overrides: str) -> Config:
    return configuration(compose(overrides), overrides)[0]


def rewritten(file: Path, change: dict[str, object]) -> Path:
    """The recipe with dotted keys of its values replaced."""
    values = yaml.safe_load(file.read_text())
    for key, value in change.items():
        *path, last = key.split(".")
        inner = values
        for name in path:
            inner = inner[int(name)] if isinstance(inner, list) else inner.setdefault(name, {})
        inner[last] = value
    file.write_text(yaml.safe_dump(values))
    return file


def test_the_command_line_wins_over_the_recipe_and_the_recipe_over_defaults(file: Path) -> None:
    rewritten(file, {"config.precision.mode": "amp", "config.precision.amp_dtype": "bfloat16", "config.model.batch": 3})
    config = config_of(f"recipe={file}")
    assert (config.precision.mode, config.model.batch, config.job) == ("amp", 3, "minilm-amp")
    config = config_of(f"recipe={file}", "precision.amp_dtype=float16", "model.sequence=16", "job=mine")
    assert (config.precision.mode, config.precision.amp_dtype, config.model.batch) == ("amp", "float16", 3)
    assert (config.model.sequence, config.job) == (16, "mine")
    assert config_of(f"recipe={file}", "model=bert").model.name == "bert"


def test_optimize_takes_the_schedules_and_leaves_the_model(file: Path) -> None:
    rewritten(
        file,
        {"config.precision.mode": "amp", "config.model": {"name": "custom", "library": "custom", "path": "evil:f"}},
    )
    session = session_of([f"recipe={file}"])
    assert session.config.precision.mode == "amp"
    assert session.config.model.name == "minilm"
    assert session.schedules is not None
    assert set(session.schedules) == {kernel(2.0).hash, kernel(3.0).hash}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config.model._target_": "os.system"}, "config.model._target_: is not allowed"),
        ({"config.model.config._target_": "os.system"}, "config.model.config._target_: is not allowed"),
        ({"config.model.name": "${oc.env:HOME}"}, "interpolations are not allowed"),
        ({"config.model.config.a": {"b": ["${oc.env:HOME}"]}}, "interpolations are not allowed"),
        ({"config.codegen": {"compiler": "/tmp/evil"}}, "config.codegen: a recipe cannot set this"),
        ({"config.tracking": {"uri": "http://evil"}}, "config.tracking: a recipe cannot set this"),
        ({"config.outputs": "/etc"}, "config.outputs: a recipe cannot set this"),
        ({"config.trust": ["evil"]}, "config.trust: a recipe cannot set this"),
        ({"config.recipe": "other.yaml"}, "config.recipe: a recipe cannot set this"),
        ({"config.modle": {}}, "did you mean 'model'?"),
        ({"config.model.nmae": "x"}, "did you mean 'name'?"),
        ({"config.model.batch": "many"}, "wants a whole number"),
        ({"config.model.library": "os"}, "there is no 'os'"),
        (
            {"config.model": {"name": "x", "library": "transformers", "architecture": "pipelines.pipeline"}},
            "names nothing",
        ),
        ({"config.model": {"name": "x", "library": "timm", "architecture": "hf-hub:evil/x"}}, "names nothing"),
        ({"config.model.config": {"checkpoint_path": "/evil.pt"}}, "cannot be set here"),
        ({"config.model.config": {"_attn_implementation": "evil/kernel"}}, "cannot be set here"),
        ({"config.model.name": "../../up"}, "no plain name"),
        ({"config.model": 3}, "wants keys and values"),
        ({"config.stages": ["capture"]}, "is missing"),
        ({"format": 99}, "this version reads 1"),
        ({"formatt": 1}, "did you mean 'format'?"),
        ({"kernels": "none"}, "wants a list"),
        ({"kernels.0.schedule.tiel": 4}, "did you mean 'tile'?"),
        ({"kernels.0.schedule.tile": 1 << 40}, "is no size"),
        ({"kernels.0.schedule.tile": -1}, "is no size"),
        ({"kernels.0.schedule.tile": True}, "is no size"),
        ({"kernels.0.schedule.persistent": 1}, "is no size"),
        ({"kernels.0.schedule.tile": "__import__('os')"}, "kernels[0].schedule.tile"),
    ],
)
def test_hostile_values_are_refused(file: Path, change: dict[str, object], said: str) -> None:
    rewritten(file, change)
    with pytest.raises(UserError) as caught:
        config_of(f"recipe={file}")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("!!python/object/apply:os.system ['touch hacked']", "tags are not allowed"),
        ("format: !!python/name:os.system", "tags are not allowed"),
        ("a: &a [1]\nb: *a", "anchors and aliases are not allowed"),
        ("a: " + "[" * 50_000, "nested deeper"),
        ("a: " + "{a: " * 100 + "1" + "}" * 100, "nested deeper"),
        ("a: [unclosed", "is no recipe"),
        ("- a\n- b", "wants keys and values"),
        ("just text", "wants keys and values"),
        ("", "wants keys and values"),
        ("format: 1\nformat: 1\n---\nformat: 1", "is no recipe"),
        ("a: \x00", "is no recipe"),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, monkeypatch, text: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        recipes.read(file)
    assert said in str(caught.value)
    assert not (tmp_path / "hacked").exists()


def test_a_huge_a_binary_and_no_file(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(b"a: " + b"x" * (recipes.MAX_BYTES + 1))
    with pytest.raises(UserError, match="larger than 2 MiB"):
        recipes.read(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="it is no text"):
        recipes.read(file)
    with pytest.raises(UserError, match="cannot be read"):
        recipes.read(tmp_path)


def test_import_paths_need_trust(file: Path) -> None:
    model = {
        "name": "custom",
        "library": "custom",
        "path": "evil.deep:f",
        "inputs": {"x": {"kind": "float", "shape": [1]}},
    }
    rewritten(file, {"config.model": model})
    with pytest.raises(ConfigError, match=r"add trust=\[evil\]"):
        config_of(f"recipe={file}")
    with pytest.raises(ConfigError, match=r"add trust=\[evil\]"):
        config_of(f"recipe={file}", "trust=[other]")
    assert config_of(f"recipe={file}", "trust=[evil]").model.path == "evil.deep:f"
    assert replace(config_of(f"recipe={file}", "trust=[evil]"), trust=()).model.path == "evil.deep:f"
