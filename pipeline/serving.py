"""A registered recipe as a model that MLflow loads: `mlflow.pyfunc.load_model("models:/NAME@ALIAS")`.

Comes in: the folder that `pipeline.registry` registered. Goes out: an object with `predict`. The model is made as the
run made it, and compiled here by the schedules of the recipe, so loading takes as long as compiling. A recipe whose
model comes from a package of yours runs that only if you name the package:
`load_model(uri, model_config={"trust": ["mine"]})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from pipeline.compile import Session
from pipeline.compose import compose
from pipeline.configure import as_lines, configuration
from pipeline.device import device_of
from pipeline.models import load
from pipeline.optimized import Optimized
from pipeline.progress import Progress
from pipeline.recipe import FILE
from stages.ir.errors import UserError


class CompiledModel:
    """The model of a recipe, compiled. Raises `UserError` where the recipe cannot be followed here."""

    def __init__(self, recipe: Path, trust: tuple[str, ...] = ()) -> None:
        lines = as_lines({"recipe": str(recipe), "trust": trust})
        config, read = configuration(compose(lines), lines)
        assert read is not None
        self.model = model = load(config.model, config.seed, device_of(config.device))
        if model.weights != read.weights:
            raise UserError(
                f"{config.model.name}: the recipe is of weights '{read.weights}', and here they are '{model.weights}'",
                "model.weights=pretrained wants a local copy of them or the network",
            )
        self.specs = model.config.inputs
        self._compiled = Optimized(model.module, Session(config, Progress(quiet=True), recipe=read))
        args, kwargs = model.inputs(config.seed)
        self._compiled.compile(*args, **kwargs)

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """What the model gives for arrays by the names of its inputs; tensors come back as arrays, in its structure.

        A model of one input takes the array itself too. Arrays of another shape or dtype than the recipe's are compiled
        for when they first come.
        """
        if not isinstance(model_input, Mapping):
            model_input = {next(iter(self.specs)): model_input}
        missing = [name for name in self.specs if name not in model_input]
        if missing:
            raise UserError(f"predict: no '{missing[0]}' among the inputs", f"give {', '.join(self.specs)}")
        args, kwargs = self.model.call_of({name: self._tensors(model_input[name]) for name in self.specs})
        return _pytree.tree_map_only(torch.Tensor, _array, self._compiled(*args, **kwargs))

    def _tensors(self, value: Any) -> Any:
        """An array on the device; a list of arrays, as detection models take, stays a list."""
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return [self._tensors(each) for each in value]
        return torch.from_numpy(np.array(value)).to(self.model.device)


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> CompiledModel:
    """MLflow's own name for what makes the model out of the registered folder."""
    return CompiledModel(Path(path) / FILE, tuple((model_config or {}).get("trust", ())))
