"""Models of timm, by name."""

from __future__ import annotations

from typing import Any

from pipeline.config import ModelConfig
from pipeline.models.weights import choose_weights, local_copy, need
from stages.ir.errors import ConfigError, nearest

_FILE = "model.safetensors"


def find(config: ModelConfig) -> str:
    """timm's name of the model. Raises `UserError` where timm is missing or has no such model."""
    library = need("timm")
    name = config.architecture or ""
    if not library.is_model(name):
        near = nearest(name, library.list_models(name[:4] + "*"))
        raise ConfigError("model.architecture", f"timm {library.__version__} has no '{name}'", near)
    return name


def build(config: ModelConfig, seed: int) -> tuple[Any, str]:
    """The model, and what its weights are."""
    name, library = find(config), need("timm")
    published = library.get_pretrained_cfg(name)
    hub_id = config.pretrained or (published.hf_hub_id if published is not None else None)

    def pretrained(local: bool) -> Any:
        overlay = {"file": local_copy(hub_id, _FILE)} if local else None
        return library.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **config.config)

    def random() -> Any:
        return library.create_model(name, pretrained=False, **config.config)

    return choose_weights(config, seed, hub_id, _FILE, random, pretrained)
