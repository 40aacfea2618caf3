"""Models and their inputs, by the data of `conf/model/*.yaml` and of the suite."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.models.load import Model, load

__all__ = ["Model", "load", "named"]


def named(name: str, overrides: Sequence[str] = ()) -> Model:
    """A model by the name that `model=` takes, on the device of the config: for `optimize` from a user's own code.

        model = named("suite/resnet18", ["model.size=smoke"])
        args, kwargs = model.inputs(seed=0)
        fast = optimize(model.module, kwargs or args)

    Raises `UserError` with the nearest name, and where the model cannot be built.
    """
    from pipeline.compose import compose
    from pipeline.configure import configuration
    from pipeline.device import device_of

    lines = [f"model={name}", *overrides]
    config, _ = configuration(compose(lines), lines)
    device: torch.device = device_of(config.device)
    return load(config.model, config.seed, device)
