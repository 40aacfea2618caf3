"""The keys of `conf/buffers/*.yaml`."""

from __future__ import annotations

from dataclasses import dataclass

from stages.buffers.planners import STRATEGIES
from stages.ir.errors import choose


@dataclass(frozen=True)
class BuffersConfig:
    """strategy: a key of `planners.STRATEGIES`, how the arena is laid out."""

    strategy: str = "best"

    def __post_init__(self) -> None:
        choose("buffers.strategy", self.strategy, STRATEGIES)
