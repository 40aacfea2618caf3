"""Which weights a library's model gets: what is shared by the libraries that have published ones.

`model.weights=auto` takes a local copy if there is one, else seeded random numbers; `pretrained` downloads; `random`
never looks. Every way says in words which it was.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from pipeline.config import ModelConfig
from stages.ir.errors import UserError


def need(library: str, package: str = "") -> ModuleType:
    """The imported library. Raises `UserError` with the pip command where it is missing."""
    try:
        return import_module(library)
    except ImportError as error:
        mend = f"pip install '{package or library}', or pip install '.[models]' for all model libraries"
        raise UserError(f"this model needs '{library}', which does not import: {error}", mend) from error


def local_copy(hub_id: str | None, filename: str) -> str | None:
    """The path of a file in the Hugging Face cache of this machine; None if it is not there."""
    if hub_id is None:
        return None
    path = need("huggingface_hub").try_to_load_from_cache(hub_id, filename)
    return path if isinstance(path, str) else None


def choose_weights(
    config: ModelConfig,
    seed: int,
    hub_id: str | None,
    filename: str,
    random: Callable[[], Any],
    pretrained: Callable[[bool], Any],
) -> tuple[Any, str]:
    """The model and what its weights are.

    random       builds it with random weights
    pretrained   builds it with published ones; called with True if they may only come from this machine
    """
    if config.weights == "pretrained":
        if hub_id is None:
            raise UserError(
                f"model.weights=pretrained: there are no published weights of {config.name}", "model.weights=random"
            )
        try:
            return pretrained(False), f"pretrained, {hub_id}"
        except Exception as error:  # each library and its transport have errors of their own
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"the weights {hub_id} cannot be fetched: {reason}", "model.weights=random needs none"
            ) from error
    if config.weights == "auto" and local_copy(hub_id, filename) is not None:
        return pretrained(True), f"pretrained, {hub_id}, from this machine's cache"
    why = "" if config.weights == "random" else "; no local copy of published ones"
    return random(), f"random, seed {seed}{why}"
