"""Keys of `conf/buffers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class BuffersConfig:
    """strategy: how intermediates share the arena."""

    strategy: Literal["none", "inplace", "greedy_by_size", "greedy_by_breadth", "best"] = "best"
