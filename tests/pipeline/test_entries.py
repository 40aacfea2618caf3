"""Both ways in, `optimize` and `torch.compile(model, backend="torchweld")`, give what eager gives, for every model."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree

from pipeline.backend import torchweld
from pipeline.models import load
from pipeline.optimized import optimize
from tests.pipeline.test_models import SMALL, model_of

CPU = torch.device("cpu")


def tensors(result: object) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def assert_entries_agree(name: str, *overrides: str) -> None:
    """The two programs are one; a library may round otherwise where its operands lie at other addresses (4e-9 of a
    small MobileNetV3 under one thread). Eager's differ by rounding."""
    model = load(model_of(f"model={name}", *overrides), 0, CPU)
    args, kwargs = model.inputs(0)
    torch._dynamo.reset()
    with torch.no_grad():
        eager = model.module(*args, **kwargs)
        flat = optimize(model.module, args or kwargs)(*args, **kwargs)
        guarded = torch.compile(model.module, backend=torchweld)(*args, **kwargs)
    assert type(flat) is type(guarded) is type(eager)
    results = [tensors(result) for result in (eager, flat, guarded)]
    assert len(results[0]) > 0
    for wanted, one, other in zip(*results, strict=True):
        scale = wanted.abs().max().item()
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6 * scale)
        torch.testing.assert_close(one, wanted, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("name", ["gpt2", "mobilenetv3"])
def test_small_models(name: str) -> None:
    assert_entries_agree(name, *SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_published_models(name: str) -> None:
    assert_entries_agree(name, *(["model.image_size=8"] if name == "unet" else []))
