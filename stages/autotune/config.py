"""Keys of `conf/autotune`."""

from __future__ import annotations

from dataclasses import dataclass

from stages.ir.errors import require


@dataclass(frozen=True)
class AutotuneConfig:
    """trials: schedules timed for each kernel at most; 0 takes the default schedule and times nothing."""

    trials: int = 0

    def __post_init__(self) -> None:
        require(self.trials >= 0, "autotune.trials", f"wants at least 0, not {self.trials}")
