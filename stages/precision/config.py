"""Keys of `conf/precision`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PrecisionConfig:
    """name: the policy; dtype: the type that low-precision operations run in."""

    name: Literal["fp32", "tf32", "amp", "bf16", "fp16"] = "fp32"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
