"""How schedules are searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stages.ir.errors import ConfigError, choose, require
from stages.ir.schedule import Schedule

FIELDS = tuple(Schedule.__dataclass_fields__)


@dataclass(frozen=True)
class AutotuneConfig:
    """The search.

    trials          candidates timed for each kernel at most, the default schedule among them; 1 times nothing
    space           for each device type the values that each field of `Schedule` may take; a field left out keeps its
                    default
    products        the same for matrix products on CUDA, whose fields have no defaults
    product_trials  candidates timed for each matrix product at most
    milliseconds    time given to each measurement of one candidate
    rounds          interleaved measurements of each candidate; the median counts
    margin          a candidate replaces the default (and a product the library) only when it is faster by more than
                    this fraction
    database        file that keeps every timing; empty: `autotune.sqlite` in the user's cache folder
    """

    trials: int = 1
    space: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    products: dict[str, list[int]] = field(default_factory=dict)
    product_trials: int = 8
    milliseconds: float = 2.0
    rounds: int = 5
    margin: float = 0.02
    database: str = ""

    def __post_init__(self) -> None:
        require(self.trials >= 1, "autotune.trials", f"{self.trials} is less than 1", "1 switches tuning off.")
        require(self.milliseconds > 0, "autotune.milliseconds", f"{self.milliseconds} is not positive")
        require(self.rounds >= 1, "autotune.rounds", f"{self.rounds} is less than 1")
        require(0 <= self.margin < 1, "autotune.margin", f"{self.margin} is not in [0, 1)")
        require(self.product_trials >= 1, "autotune.product_trials", f"{self.product_trials} is less than 1")
        for device, fields in self.space.items():
            choose("autotune.space", device, ("cpu", "cuda"))
            _check(fields, f"autotune.space.{device}")
        _check(self.products, "autotune.products")


def _check(fields: Mapping[str, Sequence[int]], key: str) -> None:
    for name, values in fields.items():
        choose(key, name, FIELDS)
        if not values or any(int(value) < 0 for value in values):
            raise ConfigError(f"{key}.{name}", f"{values} is no list of whole numbers of at least 0")
