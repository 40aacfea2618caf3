"""An MLflow store: reached, made where there is none, used by one process at a time where it is a file.

Comes in: the URI of a store. Goes out: MLflow's client, inside a context in which whatever goes wrong is a
`TrackingError`. MLflow takes seconds to import and is imported only when it is used.
"""

from __future__ import annotations

import fcntl
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.environment import environment


class TrackingError(Exception):
    """The store did not take the run. The message says which store, and why."""


@contextmanager
def reached(uri: str, timeout_seconds: float) -> Iterator[None]:
    """While the store at `uri` is used: what goes wrong with it is a `TrackingError`."""
    _probe(uri, timeout_seconds)
    try:
        with environment(_settings(timeout_seconds)), _lock(uri):
            yield
    except Exception as error:  # MLflow raises its own, SQLAlchemy's, requests' and the file system's errors
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise TrackingError(f"the store {without_password(uri)} refused: {reason}") from error


def _probe(uri: str, timeout_seconds: float) -> None:
    """Raise `TrackingError` unless a server at `uri` answers in time. MLflow itself would retry for minutes."""
    if not uri.startswith(("http://", "https://")):
        return
    address = f"{_without_user(uri).rstrip('/')}/health"
    try:
        urllib.request.urlopen(address, timeout=timeout_seconds).close()
    except urllib.error.HTTPError:
        return  # it answers; what it thinks of us, it will say again
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise TrackingError(
            f"the server {without_password(uri)} did not answer ({reason}; {timeout_seconds:g} s were allowed)"
        ) from error


def _settings(timeout_seconds: float) -> dict[str, str]:
    """MLflow's settings while it is used: short waits, no samples of the machine, no reports to its makers."""
    return {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(max(1, round(timeout_seconds))),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


@contextmanager
def _lock(uri: str) -> Iterator[None]:
    """One process at a time in a local store: two that create its tables at once would break it."""
    path = _sqlite_path(uri)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not path.exists():
            _create(path)
        yield


def _create(path: Path) -> None:
    """Make an empty store at `path`, whole or not at all.

    MLflow takes many seconds for its tables, one migration after another, and cannot go on where it was killed.
    """
    draft = path.with_name(f"{path.name}.draft")
    for left in (draft, draft.with_name(f"{draft.name}-journal")):
        left.unlink(missing_ok=True)
    client_of(f"sqlite:///{draft.as_posix()}").search_experiments()
    draft.replace(path)


def _sqlite_path(uri: str) -> Path | None:
    """The file of a sqlite store; None for a store of another kind."""
    return Path(uri.removeprefix("sqlite:///")).absolute() if uri.startswith("sqlite:///") else None


def absolute(uri: str) -> str:
    """`uri` so that it means the same store from every working directory."""
    path = _sqlite_path(uri)
    if path is not None:
        return f"sqlite:///{path.as_posix()}"
    plain = uri.removeprefix("file:") if not uri.startswith("file://") else None
    is_path = plain is not None and ":" not in plain and not plain.startswith("databricks")
    return Path(plain).absolute().as_uri() if plain is not None and is_path else uri


def without_password(uri: str) -> str:
    """`uri` fit to be shown: its user and password, if it has them, are starred out."""
    return re.sub(r"//[^/@]*@", "//***@", uri)


def _without_user(uri: str) -> str:
    return re.sub(r"//[^/@]*@", "//", uri)


def client_of(uri: str) -> Any:
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def experiment_of(client: Any, name: str, uri: str) -> str:
    """The id of the experiment, made if there is none; files of a local store lie beside it."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        local = _sqlite_path(uri)
        artifacts = (local.parent / "mlflow-artifacts").as_uri() if local is not None else None
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another process made it in between
            if found is None:
                raise
    return str(found.experiment_id)
