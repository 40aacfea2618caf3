"""A run as a version of a registered model in MLflow, which an alias may name: what `models:/NAME@ALIAS` then loads.

Comes in: the folder of a run that is in MLflow and whose result was proved right. Goes out: the number of the version.
What is registered is the recipe with its generated sources, not the weights: loading makes the model as the run did,
compiles it by the recipe's schedules and refuses if the weights are others (`pipeline.serving`). Nothing is pickled.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

from pipeline.recipe import FILE
from pipeline.tracking import Payload, read_payload
from pipeline.tracking_store import TrackingError, absolute, client_of, reached, without_password

MODEL = "model"  # the folder of the run's artifacts that the version is
_LOADER = "pipeline.serving"


def register(folder: Path, name: str, alias: str | None, uri: str, timeout_seconds: float) -> str:
    """Make the run in `folder` a new version of the model `name` in the store at `uri`; the version.

    Raises `TrackingError` where the result was not proved right, the run is not in that store, or the store refuses.
    """
    uri = absolute(uri)
    payload = read_payload(folder)
    if payload.tags.get("gate") != "passed" or payload.status != "passed":
        raise TrackingError(
            f"the run in {folder} is '{payload.status}'; only a result that was proved right is registered"
        )
    if not payload.run_id or payload.uri != without_password(uri):
        where = f"in {payload.uri}" if payload.run_id else "in no store"
        raise TrackingError(f"the run in {folder} is {where}, not in {without_password(uri)}; log it there first")
    if not (folder / FILE).is_file():
        raise TrackingError(f"{folder} has no {FILE}")
    with tempfile.TemporaryDirectory() as made, reached(uri, timeout_seconds):
        model = Path(made) / MODEL
        _save(folder, payload, model)
        client = client_of(uri)
        client.log_artifacts(payload.run_id, str(model), MODEL)
        return _version(client, payload, name, alias)


def _save(folder: Path, payload: Payload, model: Path) -> None:
    """Write the run as a model of MLflow's into `model`."""
    from mlflow import pyfunc

    data = model.parent / "run"
    data.mkdir()
    shutil.copy(folder / "recipe.yaml", data)
    if (folder / "sources").is_dir():
        shutil.copytree(folder / "sources", data / "sources")
    wanted = ("torchweld", "torch", *(["triton"] if payload.tags.get("device", "").startswith("cuda") else []))
    versions = {name: payload.parameters.get(f"versions.{name}") for name in wanted}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*input example", UserWarning)  # the signature says what it would
        pyfunc.save_model(
            str(model),
            loader_module=_LOADER,
            data_path=str(data),
            signature=_signature(payload),
            model_config={"trust": []},  # MLflow lets the user set at loading only what is set here
            pip_requirements=[f"{package}=={version}" for package, version in versions.items() if version],
            metadata={name: payload.tags.get(name, "") for name in ("config_hash", "device")},
        )


def _signature(payload: Payload) -> Any:
    """What the model takes, by name; None where it takes a dtype that NumPy has not."""
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec

    tensors = (payload.inputs or {}).get("tensors", [])
    if not tensors or any(each["dtype"] == "bfloat16" for each in tensors):
        return None
    specs: list[ColSpec | TensorSpec] = [
        TensorSpec(np.dtype(each["dtype"]), tuple(each["shape"]), each["name"]) for each in tensors
    ]
    return ModelSignature(inputs=Schema(specs))


def _version(client: Any, payload: Payload, name: str, alias: str | None) -> str:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"{client.get_run(payload.run_id).info.artifact_uri.rstrip('/')}/{MODEL}"
    kept = ("config_hash", "device", "gate", "git_revision", "status")
    tags = {key: payload.tags[key] for key in kept if payload.tags.get(key)}
    version = str(client.create_model_version(name, source, run_id=payload.run_id, tags=tags).version)
    if alias is not None:
        client.set_registered_model_alias(name, alias, version)
    return version
