"""The winner in MLflow's registry: what is registered, what is refused, and what loading it gives."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.commands.register import main as register
from pipeline.compose import compose
from pipeline.configure import configuration
from pipeline.job import run
from pipeline.progress import Progress
from pipeline.tracking import TrackingConfig, default_uri, log_record
from pipeline.tracking_store import client_of
from stages.ir.errors import UserError
from tests.report.samples import record

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(64.0).reshape(8, 8) / 64)

    def forward(self, x):
        return {"y": torch.tanh(x @ self.weight) + 1}

def make():
    return Net()
"""


def test_a_right_result_is_registered_and_loads_as_a_model(tmp_path: Path, monkeypatch, empty_store: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "model_to_register.py").write_text(MODEL)
    given = [
        *("model=custom", "model.path=model_to_register:make", "+model.inputs.x={kind: float, shape: [4, 8]}"),
        *("stages=[capture,fusion,buffers,codegen,runtime,validate]", "device=cpu"),
        *("tracking.register=net", "tracking.alias=champion"),
    ]
    folder = tmp_path / "outputs" / "day" / "run"
    folder.mkdir(parents=True)
    shutil.copy(empty_store, tmp_path / "outputs")
    config, recipe = configuration(compose(given), given)
    assert run(config, recipe, folder, Progress(quiet=True)) == 0
    assert register([str(folder), "net"]) == 0  # once more, without an alias

    uri = default_uri(tmp_path / "outputs")
    client = client_of(uri)
    champion, latest = client.get_model_version_by_alias("net", "champion"), client.get_model_version("net", "2")
    assert str(champion.version) == "1" and champion.run_id == latest.run_id
    assert champion.tags["gate"] == "passed" and champion.tags["device"].startswith("cpu")
    held = {file.path for file in client.list_artifacts(champion.run_id, "model/data/run")}
    assert held == {"model/data/run/recipe.yaml", "model/data/run/sources"}

    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        with pytest.raises(UserError, match="trust"):
            mlflow.pyfunc.load_model("models:/net@champion")
        loaded = mlflow.pyfunc.load_model("models:/net@champion", model_config={"trust": ["model_to_register"]})
    finally:
        mlflow.set_tracking_uri(before)
    x = np.random.default_rng(0).standard_normal((4, 8), dtype=np.float32)
    weight = np.arange(64, dtype=np.float64).reshape(8, 8) / 64
    np.testing.assert_allclose(loaded.predict({"x": x})["y"], np.tanh(x @ weight) + 1, rtol=1e-5)
    assert loaded.metadata.signature.inputs.inputs[0].shape == (4, 8)


def test_what_was_not_proved_right_or_is_not_in_the_store_is_refused(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "outputs" / "run"
    folder.mkdir(parents=True)
    log_record(record(passed=False), folder, TrackingConfig(enabled=False), tmp_path / "outputs")
    assert register([str(folder), "net"]) == 1
    assert "only a result that was proved right is registered" in capsys.readouterr().err
    log_record(record(), folder, TrackingConfig(enabled=False), tmp_path / "outputs")
    assert register([str(folder), "net"]) == 1
    assert "in no store" in capsys.readouterr().err
