"""Models of Hugging Face transformers, by class name and the values of their config class."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.config import ModelConfig
from pipeline.models.weights import choose_weights, need
from stages.ir.errors import ConfigError


def find(config: ModelConfig) -> Any:
    """The model's class. Raises `UserError` where the library is missing or has no such model."""
    library = need("transformers")
    kind = getattr(library, config.architecture or "", None)
    if not (isinstance(kind, type) and issubclass(kind, library.PreTrainedModel)):
        what = f"transformers {library.__version__} has no model '{config.architecture}'"
        raise ConfigError("model.architecture", what, "name a model class, as BertForMaskedLM")
    return kind


def build(config: ModelConfig, seed: int) -> tuple[Any, str]:
    """The model, and what its weights are."""
    kind, library = find(config), need("transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    sizes = kind.config_class(**config.config)

    def pretrained(local: bool) -> Any:
        return kind.from_pretrained(
            config.pretrained, config=sizes, dtype=torch.float32, use_safetensors=True, local_files_only=local
        )

    return choose_weights(config, seed, config.pretrained, "model.safetensors", lambda: kind(sizes), pretrained)
