"""A configuration composed once, for tests that only need a valid one."""

from tests.pipeline.conftest import config

__all__ = ["config"]
