"""Tests marked `gpu` are left out where there is no CUDA device."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    without = [item for item in items if item.get_closest_marker("gpu") is not None]
    if without:
        items[:] = [item for item in items if item not in without]
        config.hook.pytest_deselected(items=without)
