"""What tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stages.ir.library_flags import float32_products


@pytest.fixture
def no_tf32() -> Iterator[None]:
    """Eager's float32 products and convolutions on CUDA are of float32, as a reference has to be."""
    with float32_products(tf32=False):
        yield
