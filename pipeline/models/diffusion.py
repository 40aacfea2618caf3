"""Models of diffusers, by class name and the values of their config."""

from __future__ import annotations

from typing import Any

from pipeline.config import ModelConfig
from pipeline.models.weights import choose_weights, need
from stages.ir.errors import ConfigError

_FILE = "diffusion_pytorch_model.safetensors"


def find(config: ModelConfig) -> Any:
    """The model's class. Raises `UserError` where the library is missing or has no such model."""
    library = need("diffusers")
    kind = getattr(library, config.architecture or "", None)
    if not (isinstance(kind, type) and issubclass(kind, library.ModelMixin)):
        what = f"diffusers {library.__version__} has no model '{config.architecture}'"
        raise ConfigError("model.architecture", what, "name a model class, as UNet2DModel")
    return kind


def build(config: ModelConfig, seed: int) -> tuple[Any, str]:
    """The model, and what its weights are."""
    kind = find(config)

    def pretrained(local: bool) -> Any:
        return kind.from_pretrained(
            config.pretrained, subfolder=config.subfolder, use_safetensors=True, local_files_only=local, **config.config
        )

    filename = f"{config.subfolder}/{_FILE}" if config.subfolder else _FILE
    return choose_weights(config, seed, config.pretrained, filename, lambda: kind(**config.config), pretrained)
