"""What a run was timed and validated on, as a record: the name, dtype and shape of each input, and where they are from.

Comes in: the arguments of one call and the config. Goes out: an `InputsRecord`, plain values, which MLflow has as the
dataset of the run. Inputs are made from seeds, so the seeds and the digest of one set say which values they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

if TYPE_CHECKING:
    from pipeline.config import Config


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of a call. name: of the argument, with its place inside where it is nested; dtype: torch's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class InputsRecord:
    """The inputs of a run.

    name               of the set of values
    digest             16 hex digits, of the values, dtypes and shapes of the set of `seed`
    seed               of the inputs that were captured and timed
    validation_seeds   of the sets that the result was validated on
    kinds              what each input is, as in `pipeline.config.InputConfig.kind`
    tensors            of one set
    """

    name: str
    digest: str
    seed: int
    validation_seeds: tuple[int, ...]
    kinds: dict[str, str]
    tensors: tuple[TensorRecord, ...]


def record_inputs(args: Sequence[Any], kwargs: Mapping[str, Any], config: Config) -> InputsRecord:
    """The record of the inputs that `config` makes; `args` and `kwargs` are the set of its seed."""
    specs = config.model.inputs
    # Passed by position, they are in the order of the config's names.
    named = {**dict(zip(specs, args)), **kwargs}
    digest, tensors = hashlib.sha256(), []
    for path, leaf in _pytree.tree_flatten_with_path(named)[0]:
        if isinstance(leaf, torch.Tensor):
            name = ".".join(str(getattr(part, "key", getattr(part, "idx", part))) for part in path)
            tensors.append(TensorRecord(name, str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)))
            digest.update(repr(tensors[-1]).encode())
            digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    validated = config.validate.input_sets if "validate" in config.stages else 0
    return InputsRecord(
        name=f"{config.model.name}-inputs",
        digest=digest.hexdigest()[:16],
        seed=config.seed,
        validation_seeds=tuple(config.validate.seed + number for number in range(validated)),
        kinds={name: spec.kind for name, spec in specs.items()},
        tensors=tuple(tensors),
    )
