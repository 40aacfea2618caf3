"""Element types of the IR: names as torch has them, and what each is computed in.

Comes in: `torch.dtype`s or names. Goes out: a `DType`, whose value is torch's own name ("float32").
Half types are storage only: arithmetic on them runs in float32, so a printer never meets a bfloat16 operator.
"""

from __future__ import annotations

from enum import Enum

import torch


class DType(str, Enum):
    """An element type. The value is torch's name for it, which is also its text form."""

    BOOL = "bool"
    UINT8 = "uint8"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    def __str__(self) -> str:
        return self.value

    @property
    def torch(self) -> torch.dtype:
        """The same type as a `torch.dtype`."""
        dtype: torch.dtype = getattr(torch, self.value)
        return dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.torch.itemsize

    @property
    def is_float(self) -> bool:
        return self.value.startswith(("float", "bfloat"))

    @property
    def is_half(self) -> bool:
        """True of the two types that are stored but never computed in."""
        return self in (DType.FLOAT16, DType.BFLOAT16)

    @property
    def is_integer(self) -> bool:
        """True of whole-number types; bool is none."""
        return not self.is_float and self is not DType.BOOL

    @property
    def compute(self) -> DType:
        """The type that arithmetic on this type runs in: float32 for the half types, else itself."""
        return DType.FLOAT32 if self.is_half else self


def from_torch(dtype: torch.dtype) -> DType | None:
    """The `DType` of a `torch.dtype`; None for one that the loop IR does not have (complex, float8, ...)."""
    try:
        return DType(str(dtype).removeprefix("torch."))
    except ValueError:
        return None
