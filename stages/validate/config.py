"""What `conf/validate/*.yaml` says: how many inputs, how far from float64 a result may be, and what else must match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stages.ir.errors import nearest, require


@dataclass(frozen=True)
class Floor:
    """Error that is allowed whatever eager's own error is; both numbers have no unit.

    relative_error   of ‖out − ref‖ / ‖ref‖ (Euclidean norms)
    peak_error       of max|out − ref| / max|ref|

    A floor is a few units in the last place of the type that the precision computes in: eager is often exact by luck
    where there is little to compute, and a result that rounds once the other way is no worse.
    """

    relative_error: float
    peak_error: float


@dataclass(frozen=True)
class ValidateConfig:
    """Keys of `conf/validate`.

    input_sets    seeded inputs that are tried
    seed          of the first set; set k has seed + k, which also seeds random operators
    factor        times eager's relative error that the candidate's may be
    peak_factor   times eager's peak error that the candidate's may be: the largest of many errors scatters more than
                  their norm, so it is allowed more
    few_numbers   an output of at most so many numbers that fails by its error's size in a set is judged again by its
                  error over all sets together; 0: none is
    few_sets      over how many sets then
    floors        by name of the precision
    strides       whether strides must be eager's
    aliases       whether outputs must share memory with each other and with inputs as eager's do
    bisect        whether a failed validation goes on to find the first wrong step
    """

    input_sets: int = 3
    seed: int = 0
    factor: float = 2.0
    peak_factor: float = 4.0
    few_numbers: int = 256
    few_sets: int = 16
    floors: Mapping[str, Floor] = field(default_factory=dict)
    strides: bool = True
    aliases: bool = True
    bisect: bool = True

    def __post_init__(self) -> None:
        require(
            self.input_sets >= 1, "validate.input_sets", f"{self.input_sets} inputs prove nothing", "Give 1 or more."
        )
        require(self.seed >= 0, "validate.seed", f"{self.seed} is negative")
        require(self.few_numbers >= 0, "validate.few_numbers", f"{self.few_numbers} is negative")
        require(
            self.few_sets >= 10,
            "validate.few_sets",
            f"{self.few_sets} sets tell too little of one number",
            "Give >= 10.",
        )
        for key in ("factor", "peak_factor"):
            value = getattr(self, key)
            require(
                value >= 1.0, f"validate.{key}", f"{value} would ask for more accuracy than eager has", "Give >= 1."
            )
        floors = {
            name: floor if isinstance(floor, Floor) else Floor(**floor) for name, floor in dict(self.floors).items()
        }
        for name, floor in floors.items():
            for key in ("relative_error", "peak_error"):
                require(0 <= getattr(floor, key) < 1, f"validate.floors.{name}.{key}", "is no number from 0 to 1")
        object.__setattr__(self, "floors", floors)

    def floor(self, precision: str) -> Floor:
        """The floor of `precision`. Raises `ConfigError` where the config states none."""
        require(
            precision in self.floors,
            f"validate.floors.{precision}",
            "no floor is stated for this precision",
            nearest(precision, self.floors),
        )
        return self.floors[precision]
