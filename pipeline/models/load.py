"""A model of the config, ready to be compiled, with its inputs.

Comes in: `ModelConfig`, a seed and a device. Goes out: a `Model`: the module in evaluation mode, what its weights are,
and inputs by seed. Everything that can go wrong on the way (a library that is missing, a factory that raises, inputs
that do not fit) is a `UserError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from pipeline.config import ModelConfig
from pipeline.models import custom, diffusion, layers, minilm, timm_models, torchvision_models, transformer
from pipeline.models.inputs import make_inputs, nested, shapes
from pipeline.models.suite import expand, merge
from stages.ir.errors import UserError

# find(config): what will be built, or a `UserError`; build(config, seed): the model, and what its weights are.
_LIBRARIES: dict[str, Any] = {
    "transformers": transformer,
    "timm": timm_models,
    "torchvision": torchvision_models,
    "diffusers": diffusion,
    "minilm": minilm,
    "layers": layers,
    "custom": custom,
}


@dataclass(frozen=True)
class Model:
    """A model to compile.

    config    with an entry of the suite expanded
    module    what is called
    weights   what they are, for people ("random, seed 0")
    """

    config: ModelConfig
    module: Callable[..., Any]
    weights: str
    device: torch.device

    def inputs(self, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of one call, the same ones for the same seed."""
        return self.call_of(make_inputs(self.config.inputs, seed))

    def call_of(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of a call with `values` by the names of the config's inputs."""
        made = nested(values)
        tensors: dict[str, Any] = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device), made)
        if self.config.positional:
            return tuple(tensors.values()), dict(self.config.call)
        return (), merge(tensors, self.config.call)

    def check(self, seed: int) -> None:
        """Call the model once as it is. Raises `UserError` if the inputs do not fit it."""
        args, kwargs = self.inputs(seed)
        try:
            with torch.no_grad():
                self.module(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            mend = "a smaller model.batch, or device=cpu"
            raise UserError(
                f"{self.config.name}: one eager call does not fit into the memory of {self.device}", mend
            ) from error
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            what = f"{self.config.name} does not take its inputs ({shapes(args, kwargs)})"
            raise UserError(
                f"{what}: {type(error).__name__}: {lines[0]}", _how_inputs_are_passed(self.config)
            ) from error

    @property
    def metric(self) -> Callable[[Callable[..., Any]], dict[str, float]] | None:
        """The measure of the model's own task, as a function of the compiled model; None where there is none."""
        if self.config.library != "minilm" or not isinstance(self.module, torch.nn.Module):
            return None
        return minilm.Retrieval(self.module, self.config, self.device)


def _how_inputs_are_passed(config: ModelConfig) -> str:
    if config.positional:
        return "model.inputs says what is passed, by position in its order; model.positional=false passes it by name"
    names = ", ".join(config.inputs) or "none"
    return f"model.inputs says what is passed, by its names ({names}); model.positional=true passes it by position"


def check_importable(config: ModelConfig) -> None:
    """Import what the model comes from. Raises `UserError` where that fails; nothing is built."""
    config = expand(config)
    _LIBRARIES[config.library].find(config)


def load(config: ModelConfig, seed: int, device: torch.device) -> Model:
    """Build the model on the CPU under `seed`, so that every device gets the same weights, and move it.

    Raises `UserError` where its library is missing, its weights cannot be had, or the user's factory fails.
    """
    config = expand(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, weights = _LIBRARIES[config.library].build(config, seed)
    if isinstance(module, torch.nn.Module):
        module = module.eval().to(device)
    return Model(config, module, weights, device)
