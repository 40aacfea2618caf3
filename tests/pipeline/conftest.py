"""A configuration composed once, for tests that only need a valid one."""

from __future__ import annotations

import pytest

from pipeline.compose import compose
from pipeline.config import Config
from pipeline.configure import configuration


@pytest.fixture(scope="session")
def config() -> Config:
    return configuration(compose([]), [])[0]
