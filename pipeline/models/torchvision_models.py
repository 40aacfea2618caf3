"""Models of torchvision, by their name below `torchvision.models`: `resnet50`, `detection.ssd300_vgg16`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.config import ModelConfig
from pipeline.models.weights import need
from stages.ir.errors import ConfigError, UserError, nearest


def find(config: ModelConfig) -> Callable[..., Any]:
    """The function that builds the model. Raises `UserError` where torchvision is missing or has no such model."""
    library = need("torchvision")
    names = library.models.list_models()
    *folder, name = (config.architecture or "").split(".")
    module = library.models
    for part in folder:
        module = getattr(module, part, None)
    builder = getattr(module, name, None)
    # The registry of torchvision writes quantization.resnet50 as quantized_resnet50, and has no other folders.
    known = f"quantized_{name}" if folder == ["quantization"] else name
    if known not in names or builder is None:
        what = f"torchvision {library.__version__} has no model '{config.architecture}'"
        raise ConfigError("model.architecture", what, nearest(name, names))
    return builder


def build(config: ModelConfig, seed: int) -> tuple[Any, str]:
    """The model with random weights: torchvision's own are not on the Hugging Face hub, where others are taken from."""
    if config.weights == "pretrained":
        raise UserError("model.weights=pretrained: weights of torchvision are not fetched", "model.weights=random")
    return find(config)(weights=None, **config.config), f"random, seed {seed}"
