"""Keys of `conf/fusion`."""

from __future__ import annotations

from dataclasses import dataclass

from stages.ir.errors import require


@dataclass(frozen=True)
class FusionConfig:
    """max_ops: operations in one kernel at most."""

    max_ops: int = 64

    def __post_init__(self) -> None:
        require(self.max_ops >= 1, "fusion.max_ops", f"wants at least 1, not {self.max_ops}")
