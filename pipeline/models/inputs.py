"""Seeded inputs by data.

Comes in: `InputConfig`s by name, and a seed. Goes out: CPU tensors by name; the same ones for the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree

from pipeline.config import InputConfig


def make_inputs(specs: Mapping[str, InputConfig], seed: int) -> dict[str, Any]:
    """A tensor, or a list of images, for each spec. They are drawn in order from one generator."""
    generator = torch.Generator().manual_seed(seed)
    kinds = {spec.kind for spec in specs.values()}
    sentences = _sentences(specs, generator) if "sentence_ids" in kinds else {}
    return {
        name: sentences[spec.kind] if spec.kind in sentences else _draw(spec, generator) for name, spec in specs.items()
    }


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `a.b` as the key b of a mapping a."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        *outer, name = path.split(".")
        inner = found
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[name] = value
    return found


def _draw(spec: InputConfig, generator: torch.Generator) -> Any:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    shape = list(spec.shape)
    if spec.kind == "mask":
        return torch.ones(shape, dtype=dtype)
    if spec.kind == "images":
        return [torch.rand(shape[1:], generator=generator).to(dtype) for _ in range(shape[0])]
    if spec.high is not None:
        values = torch.randint(spec.low, spec.high, shape, generator=generator).to(dtype)
        column = 1
        for value, count in spec.placeholders:
            values[:, column : column + count] = value
            column += count
        return values
    return torch.randn(shape, generator=generator).to(dtype)


def _sentences(specs: Mapping[str, InputConfig], generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Tokens and mask of sentences drawn without repetition until all were used."""
    from pipeline.models.minilm import tokenize
    from pipeline.models.sentences import SENTENCES

    rows, length = next(spec.shape for spec in specs.values() if spec.kind == "sentence_ids")
    order = torch.cat([torch.randperm(len(SENTENCES), generator=generator) for _ in range(-(-rows // len(SENTENCES)))])
    ids, mask = tokenize([SENTENCES[place] for place in order[:rows].tolist()], length)
    return {"sentence_ids": ids, "sentence_mask": mask}


def shapes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """`input_ids: int64[1, 128], use_cache=False`, for messages."""
    named = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    parts = []
    for name, value in named.items():
        tensors = [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        text = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors)
        parts.append(f"{name}: {text}" if tensors else f"{name}={value}")
    return ", ".join(parts)
