"""What tests of tracking share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.tracking import default_uri
from pipeline.tracking_store import client_of


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with its tables made, which takes MLflow many seconds, and nothing in it."""
    outputs = tmp_path_factory.mktemp("store")
    client_of(default_uri(outputs)).search_experiments()
    return outputs / "mlflow.db"
