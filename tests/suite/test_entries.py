"""The suite's data file as models: every entry is complete, composes, and small ones are built and called."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from pipeline import optimize
from pipeline.compose import compose, jobs_of
from pipeline.config import Config, ModelConfig
from pipeline.configure import configuration
from pipeline.models import load, named
from pipeline.models.inputs import make_inputs, nested
from pipeline.models.load import check_importable
from pipeline.models.suite import entries, expand
from pipeline.recipe import read as read_recipe
from pipeline.recipe import recipe_of
from pipeline.recipe import write as write_recipe
from stages.ir.errors import ConfigError, UserError, nearest

CPU = torch.device("cpu")


def config_of(*overrides: str) -> Config:
    return configuration(compose(overrides), overrides)[0]


def model_of(name: str, *overrides: str) -> ModelConfig:
    return expand(config_of(f"model=suite/{name}", *overrides).model)


# ---- the data file -------------------------------------------------------------------------


def test_the_suite_is_whole() -> None:
    suite = entries()
    assert len(suite) == 271
    families = Counter(entry.family for entry in suite.values())
    assert families == {"huggingface": 124, "timm": 80, "torchvision": 30, "torchbench-other": 22, "diffusers": 15}
    assert Counter(entry.tier for entry in suite.values()) == {"listed": 209, "extra": 62}
    for name, entry in suite.items():
        assert name == name.lower()
        assert set(entry.sizes) == {"full", "smoke"}
        assert set(entry.sizes["full"]) == set(entry.sizes["smoke"])
        assert bool(entry.layers) is (entry.library == "layers")


@pytest.mark.parametrize("size", ["full", "smoke"])
def test_every_entry_expands_to_numbers(size: str) -> None:
    for name in entries():
        config = expand(ModelConfig(name, "suite", name, weights="random", size=size))  # type: ignore[arg-type]
        assert config.inputs
        assert all(isinstance(extent, int) for spec in config.inputs.values() for extent in spec.shape)
        assert config.positional is (config.library not in ("transformers", "diffusers"))


# ---- model=suite/NAME ----------------------------------------------------------------------


def test_smoke_and_full_size() -> None:
    full, smoke = model_of("albert_for_masked_lm"), model_of("albert_for_masked_lm", "model.size=smoke")
    assert (full.library, full.architecture) == ("transformers", "AlbertForMaskedLM")
    assert full.inputs["input_ids"].shape == (4, 512)
    assert smoke.inputs["input_ids"].shape == (1, 16)
    assert (full.config["hidden_size"], smoke.config["hidden_size"]) == (4096, 256)
    assert (full.batch, smoke.batch) == (4, 1)


def test_what_the_user_sets_is_laid_over_the_entry() -> None:
    config = model_of("resnet18", "model.size=smoke", "model.sizes.B=3", "+model.config.num_classes=7")
    assert config.inputs["x"].shape == (3, 3, 64, 64)
    assert config.config["num_classes"] == 7
    nested_config = model_of("sam_vit_h", "model.size=smoke", "+model.config.vision_config={num_hidden_layers: 1}")
    assert nested_config.config["vision_config"]["num_hidden_layers"] == 1
    assert nested_config.config["vision_config"]["hidden_size"] == 96


@pytest.mark.parametrize(
    ("overrides", "key", "said"),
    [
        (["model=suite/resnet5"], "model", "did you mean 'suite/resnet50'?"),
        (["model=suit/resnet50"], "model", "did you mean 'suite/resnet50'?"),
        (["model=suite/resnet18", "model.size=smok"], "model.size", "did you mean 'smoke'?"),
        (["model=suite/resnet18", "model.sizes.B=0"], "model.sizes.B", "at least 1"),
        (["model=suite/resnet18", "+model.sizes.S=1"], "model.sizes.S", "Valid: B, H."),
        (["model=suite/resnet18", "model.weights=pretrained"], "model.weights", "random weights"),
        (["model=suite/resnet18", "model.architecture=resnet5"], "model.architecture", "did you mean 'resnet50'?"),
    ],
)
def test_what_is_no_entry_or_size_is_named(overrides: list[str], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_importable(config_of(*overrides).model)
    assert caught.value.key == key
    assert said in str(caught.value)


def test_a_sweep_over_entries() -> None:
    jobs = jobs_of(["model=suite/resnet18,suite/gpt2,bert", "precision=fp32,amp"])
    assert len(jobs) == 6
    assert [config_of(*job).model.name for job in jobs] == ["resnet18", "resnet18", "gpt2", "gpt2", "bert", "bert"]


def test_a_recipe_names_the_entry_and_nothing_else(tmp_path: Path) -> None:
    config = config_of("model=suite/demucs", "model.size=smoke", "model.sizes.B=2")
    write_recipe(tmp_path / "recipe.yaml", recipe_of(config, [], {}, "cpu", "random, seed 0"))
    recorded = read_recipe(tmp_path / "recipe.yaml").config["model"]
    assert (recorded["library"], recorded["architecture"], recorded["sizes"]["B"]) == ("suite", "demucs", 2)
    assert recorded["inputs"] == {}


def test_many_valid_names_are_not_all_listed() -> None:
    said = nearest("resnet5", entries())
    assert "did you mean 'resnet50'? Of 271 valid ones the nearest are: resnet50" in said
    assert len(said) < 200


# ---- building ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["albert_base", "lcnet_050", "squeezenet1_1", "dcgan_generator", "crnn_vgg16_bn", "dlrm", "sdxl_unet"]
)
def test_one_of_each_library_takes_its_inputs(name: str) -> None:
    config = config_of(f"model=suite/{name}", "model.size=smoke").model
    model = load(config, 0, CPU)
    model.check(0)
    assert model.weights == "random, seed 0"
    again = load(config, 0, CPU)
    states = [one.module.state_dict() for one in (model, again)]  # type: ignore[attr-defined]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(
    "name", ["dcgan_generator", "phlippe_resnet", "pytorch_unet", "crnn_vgg16_bn", "squeezenet1_1"]
)
def test_published_sizes(name: str) -> None:
    with torch.device("meta"):
        model = load(config_of(f"model=suite/{name}").model, 0, torch.device("meta"))
    count = sum(parameter.numel() for parameter in model.module.parameters())  # type: ignore[attr-defined]
    assert math.isclose(count / 1e6, entries()[name].parameters_m, abs_tol=0.006)


def test_torchvision_has_no_such_model() -> None:
    with pytest.raises(ConfigError, match="did you mean 'resnet18'"):
        check_importable(ModelConfig("x", "torchvision", "resnet81"))
    with pytest.raises(ConfigError, match="has no model 'sys"):
        check_importable(ModelConfig("x", "torchvision", "sys.exit"))
    with pytest.raises(UserError, match="not described by layers"):
        check_importable(ModelConfig("x", "layers", "resnet18"))


def test_inputs_of_the_suite() -> None:
    tokens = model_of("llava_1_5_13b", "model.size=smoke").inputs["input_ids"]
    ids = make_inputs({"input_ids": tokens}, 0)["input_ids"]
    (token, count), *_ = tokens.placeholders
    assert (ids[:, 1 : 1 + count] == token).all()
    assert (ids[:, 0] < token).all()
    assert (ids[:, 1 + count :] < token).all()
    images = make_inputs(model_of("ssd300_vgg16", "model.size=smoke", "model.sizes.B=2").inputs, 0)["images"]
    assert [image.ndim for image in images] == [3, 3]
    assert all(0 <= image.min() and image.max() < 1 for image in images)
    assert nested({"a": 1, "b.c": 2, "b.d": 3}) == {"a": 1, "b": {"c": 2, "d": 3}}


def test_a_mapping_of_inputs_joins_the_constants_of_the_call() -> None:
    _, kwargs = named("suite/sdxl_unet", ["model.size=smoke", "+model.call.added_cond_kwargs={extra: 1}"]).inputs(0)
    assert set(kwargs["added_cond_kwargs"]) == {"text_embeds", "time_ids", "extra"}


def test_optimize_takes_a_named_model() -> None:
    model = named("suite/lennard_jones", ["model.size=smoke", "device=cpu"])
    args, kwargs = model.inputs(0)
    fast = optimize(model.module, kwargs or args)
    with torch.no_grad():
        expected = model.module(*args, **kwargs)
    torch.testing.assert_close(fast(*args, **kwargs), expected)
