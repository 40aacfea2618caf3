"""`device` under Triton's interpreter, where there is nothing to wait for and nothing to prefetch."""

from __future__ import annotations

from typing import Any


def gdc_wait() -> None:
    """See `device_inline`."""


def gdc_launch_dependents() -> None:
    """See `device_inline`."""


def prefetch(pointer: Any, mask: Any) -> None:
    """See `device_inline`."""
