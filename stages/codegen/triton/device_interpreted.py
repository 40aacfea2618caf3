"""`device` under Triton's interpreter, where there is nothing to wait for and nothing to prefetch.

To import it mends the interpreter in one place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def gdc_wait() -> None:
    """See `device_inline`."""


def gdc_launch_dependents() -> None:
    """See `device_inline`."""


def prefetch(pointer: Any, mask: Any) -> None:
    """See `device_inline`."""


def _splat(self: Any, result: Any, scalar: TensorHandle) -> TensorHandle:
    """A block of one number. Triton's own takes a comparison for a number of the type that was compared."""
    return TensorHandle(np.full(result.shape, scalar.data, dtype=scalar.data.dtype), scalar.dtype.scalar)


InterpreterBuilder.create_splat = _splat
