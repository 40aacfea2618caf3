"""Recipes: written, read back, found by name, compared, and laid under the command line."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from pipeline import optimize
from pipeline.backend import torchweld
from pipeline.compile import with_schedules
from pipeline.compose import compose, for_hydra, jobs_of
from pipeline.config import Config, RecipeConfig
from pipeline.configure import configuration, session_of
from pipeline.device import describe, versions
from pipeline.recipe import (
    Recipe,
    Results,
    ValidationRecord,
    find,
    hold,
    lines_of,
    read,
    recipe_of,
    results_of,
    shipped,
    write,
)
from pipeline.sweep.identity import identity_of
from stages.ir.dtype import DType
from stages.ir.errors import ConfigError
from stages.ir.expr import Axis, Buffer, const, load, op, var
from stages.ir.kernel import Kernel, Store
from stages.ir.program import BufferSpec, Launch, Program
from stages.ir.schedule import Schedule
from tests.report.samples import record

ROOT = Path(__file__).parents[2]


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
    results = Results("passed", ValidationRecord(True, 1.5))
    write(path, recipe_of(config, programs, {"torch": "1", "python": "3"}, "cpu: x", "random", results))
    return path


def test_what_is_written_is_read(file: Path) -> None:
    recipe = read(file)
    assert [(kernel.name, kernel.launches) for kernel in recipe.kernels] == [("times_2", 2), ("times_3", 1)]
    assert recipe.schedules == {kernel(f).hash: Schedule(vector_width=8, unroll=2) for f in (2.0, 3.0)}
    assert recipe.results == Results("passed", ValidationRecord(True, 1.5))
    assert recipe.config["model"]["name"] == "minilm"
    text = file.read_text().splitlines()
    assert text[recipe.lines["kernels[1].hash"] - 1].strip() == f"hash: {kernel(3.0).hash}"
    assert text[recipe.lines["config.model.batch"] - 1].strip().startswith("batch: ")
    assert list(file.parent.iterdir()) == [file]


def test_the_figures_of_a_run_are_kept_with_their_intervals(file: Path, config: Config) -> None:
    benchmark = record().benchmark
    assert benchmark is not None
    results = results_of("passed", None, benchmark)
    write(file, recipe_of(config, [], {}, "cpu: x", "", results))
    assert read(file).results == results
    ours, eager = results.engines["torchweld"], results.engines["eager"]
    samples = sorted(benchmark.engine("torchweld").samples_ms)
    assert ours.latency_ms.value == pytest.approx(statistics.median(samples), rel=1e-5)
    assert samples[0] <= ours.latency_ms.low <= ours.latency_ms.value <= ours.latency_ms.high <= samples[-1]
    assert ours.speedup is not None and ours.speedup.low <= ours.speedup.value <= ours.speedup.high
    assert eager.speedup is None and results.baseline == "eager"
    assert results_of("failed", None, benchmark).engines == {}


def test_no_model_of_ours_is_beyond_the_limits(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    for name in ("unet", "vit", "suite/gpt2_large"):  # those with the most words in their sizes
        made = recipe_of(config_of(f"model={name}"), [], {}, "cpu: x", "")
        write(path, made)
        assert read(path).config == made.config


def test_schedules_go_to_the_kernels_of_their_hash() -> None:
    chosen = Schedule(vector_width=4)
    steps = with_schedules(program(2.0, 3.0), {kernel(2.0).hash: chosen}).launches
    assert [step.schedule for step in steps] == [chosen, None]


def here_of(config: Config, programs: list[Program], versions: dict[str, str], device: str) -> Recipe:
    return recipe_of(config, programs, versions, device, "random")


def test_differences(file: Path, config: Config) -> None:
    recipe = read(file)
    same = program(2.0, 3.0, 2.0)
    assert lines_of(recipe, here_of(config, [same], {"torch": "1", "python": "3"}, "cpu: x")) == [
        f"kernel times_{factor} {kernel(factor).hash} schedule: Schedule(vector_width=8, unroll=2) in the recipe, "
        "the default one here"
        for factor in (2, 3)
    ]
    other = replace(config, precision=replace(config.precision, mode="amp"), device=replace(config.device, threads=3))
    versions = {"torch": "2", "triton": "3", "python": "3"}
    programs = [program(2.0, 5.0, schedule=Schedule(vector_width=8, unroll=2))]
    lines = lines_of(recipe, here_of(other, programs, versions, "cpu: y"))
    assert lines == [
        "config.precision.mode: fp32 in the recipe, amp here",
        "torch: 1 in the recipe, 2 here",
        "triton: not there in the recipe, 3 here",
        "device: cpu: x in the recipe, cpu: y here",
        f"kernel times_2 {kernel(2.0).hash}: launched 2 times in the recipe, launched once here",
        f"kernel times_3 {kernel(3.0).hash}: launched once in the recipe, not there here",
        f"kernel times_5 {kernel(5.0).hash}: not there in the recipe, launched once here",
    ]
    with pytest.raises(ConfigError, match=r"recipe.strict: 7 differences from x:\n    config.precision.mode: fp32 in"):
        hold(RecipeConfig("x", True), lines)
    hold(RecipeConfig("x"), lines)
    hold(RecipeConfig("x", True), [])


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
    assert set(session.schedules(torch.device("cpu")) or {}) == {kernel(2.0).hash, kernel(3.0).hash}


def test_schedules_of_one_type_of_device_are_not_taken_on_another(file: Path) -> None:
    session = session_of([f"recipe={file}"])
    assert session.schedules(torch.device("cpu")) is not None
    assert session.schedules(torch.device("cuda")) is None


def test_what_is_set_on_top_needs_to_be_in_the_recipe_and_not_in_the_defaults(file: Path) -> None:
    write(file, recipe_of(config_of("model=vit"), [], {}, "cpu: x", ""))
    config = config_of(f"recipe={file}", "model.image_size=96", "model.batch=2")
    assert config.model.image_size == 96
    assert config.model.inputs["x"].shape == (2, 3, 96, 96)  # conf/model/vit.yaml makes them of these sizes
    assert config.model.config["img_size"] == 96
    config = config_of(f"recipe={file}", "model.image_size=96", "model.inputs.x.shape=[1, 3, 64, 64]")
    assert config.model.inputs["x"].shape == (1, 3, 64, 64)
    with pytest.raises(ConfigError, match=r"model.config.imgsize: the recipe does not have it\n  to add it, write \+"):
        config_of(f"recipe={file}", "model.config.imgsize=96")
    assert config_of(f"recipe={file}", "+model.config.depth=2").model.config["depth"] == 2
    with pytest.raises(ConfigError, match="did you mean 'image_size'"):
        config_of(f"recipe={file}", "model.imagesize=96")


def test_a_recipe_and_an_experiment_both_set_everything(file: Path) -> None:
    with pytest.raises(ConfigError, match="experiment: sets what a recipe sets too"):
        config_of(f"recipe={file}", "experiment=smoke")
    assert config_of(f"recipe={file}", "experiment=null").model.name == "minilm"


def test_a_recipe_is_the_base_of_a_sweep(file: Path) -> None:
    rewritten(file, {"config.fusion.max_ops": 7})
    overrides = jobs_of([f"recipe={file}", "precision=fp32,amp", "model.batch=1,4"])
    jobs = [config_of(*job) for job in overrides]
    assert [(job.precision.mode, job.model.batch, job.model.inputs["input_ids"].shape[0]) for job in jobs] == [
        *(("fp32", 1, 1), ("fp32", 4, 4)),
        *(("amp", 1, 1), ("amp", 4, 4)),
    ]
    assert {job.fusion.max_ops for job in jobs} == {7}
    assert [job.job for job in jobs] == ["minilm-fp32", "minilm-fp32", "minilm-amp", "minilm-amp"]
    assert len({identity_of(job, "cpu", {}).key for job in jobs}) == 4


# ---- by name -------------------------------------------------------------------------------


def test_names_paths_and_run_folders(file: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = next(iter(shipped()))
    assert find(name) == shipped()[name] and find(name).parent == ROOT / "conf" / "recipe"
    assert find("recipe.yaml") == Path("recipe.yaml")
    assert find(str(tmp_path)) == file
    assert find("missing.yaml") == Path("missing.yaml")
    with pytest.raises(ConfigError, match=f"recipe: there is no '{name}x'\n  there are, the nearest first: {name}"):
        find(f"{name}x")


@pytest.mark.parametrize("name", shipped())
def test_what_comes_with_the_program_is_sound(name: str) -> None:
    recipe = read(find(name))
    assert recipe.results is not None and recipe.results.status == "passed"
    assert recipe.results.engines["torchweld"].speedup is not None
    assert recipe.kernels
    config = config_of(f"recipe={name}")
    assert name == f"{config.model.name}_{config.precision.mode}_{name.rsplit('_', 1)[1]}"
    assert config_of(f"recipe={name}", "recipe.strict=true").recipe == RecipeConfig(name, True)


def test_optimize_is_held_to_a_recipe_too(file: Path) -> None:
    mine = torch.nn.Linear(8, 8).eval()
    x = torch.ones(2, 8)
    made = optimize(mine, x, ["device=cpu"])
    about = (versions(), describe(torch.device("cpu")), "theirs")
    write(file, recipe_of(made.session.config, made.programs, *about))
    again = optimize(mine, x, [f"recipe={file}", "recipe.strict=true"])
    assert torch.equal(again(x), made(x))
    with pytest.raises(ConfigError, match=r"recipe.strict: 1 difference from .*\n    config.fusion.max_ops: 64 in"):
        optimize(mine, x, [f"recipe={file}", "recipe.strict=true", "fusion.max_ops=63"])
    with pytest.raises(ConfigError, match="one graph at a time"):
        torchweld(None, [], options=["recipe.strict=true", f"recipe={file}"])  # type: ignore[arg-type]


def test_strict_without_a_recipe() -> None:
    with pytest.raises(ConfigError, match=r"recipe.strict: holds a run to a recipe, and none is named"):
        config_of("recipe.strict=true")


def test_hydra_is_told_in_its_own_words() -> None:
    assert for_hydra(["recipe=a,b", "model.batch=2", "+model.config.x=1", "seed=3", "precision=amp"]) == [
        *("recipe.path=a,b", "++model.batch=2", "+model.config.x=1", "seed=3", "precision=amp"),
    ]
    assert for_hydra(["model.batch=2", "experiment=null", "experiment=smoke"]) == ["model.batch=2", "experiment=smoke"]
