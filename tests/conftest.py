"""What tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stages.ir.library_flags import float32_products


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a CUDA device, tests marked `gpu` are not among those to run."""
    if torch.cuda.is_available():
        return
    without = [item for item in items if item.get_closest_marker("gpu") is not None]
    if without:
        items[:] = [item for item in items if item not in without]
        config.hook.pytest_deselected(items=without)


@pytest.fixture
def no_tf32() -> Iterator[None]:
    """Eager's float32 products and convolutions on CUDA are of float32, as a reference has to be."""
    with float32_products(tf32=False):
        yield
