"""Runs in MLflow: parameters, metrics, tags and the files of the run folder, in a store that any MLflow server can be.

Comes in: a `RunRecord` and the run folder. Goes out: lines to tell the user. What is to be logged is first written to
`tracking.json` in the run folder, so that a store that does not answer costs nothing but a later
`python -m pipeline.commands.sync_tracking FOLDER`. Without `tracking.uri` the store is sqlite in the output folder,
under a file lock: several processes may meet on a store that does not exist yet. MLflow takes seconds to import and is
imported only when it is used.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pipeline import sweep_runs
from pipeline.files import write_whole
from pipeline.report.collect import record_of
from pipeline.report.record import RunRecord, flatten, plain
from pipeline.tracking_inputs import dataset_input, input_parameters
from pipeline.tracking_store import TrackingError, absolute, client_of, experiment_of, reached, without_password
from stages.ir.errors import require

PAYLOAD, SWEEP_PAYLOAD = "tracking.json", "tracking-sweep.json"
_P = TypeVar("_P")
SYNC = "python -m pipeline.commands.sync_tracking"


@dataclass(frozen=True)
class TrackingConfig:
    """Keys of `conf/tracking`.

    enabled           whether runs are logged
    uri               of an MLflow store; null: `mlflow.db` in the output folder
    experiment        the experiment's name
    timeout_seconds   that a server has to answer
    register          a run whose result is right becomes a new version of the registered model of this name
    alias             that then means this version, such as "champion"
    """

    enabled: bool = True
    uri: str | None = None
    experiment: str = "torchweld"
    timeout_seconds: float = 5.0
    register: str | None = None
    alias: str | None = None

    def __post_init__(self) -> None:
        require(bool(self.experiment), "tracking.experiment", "is empty", "Give the experiment a name.")
        require(self.timeout_seconds > 0, "tracking.timeout_seconds", f"{self.timeout_seconds} is not above 0")
        require(
            self.alias is None or bool(self.register), "tracking.alias", "names nothing", "give tracking.register too"
        )
        tracked = self.register is None or self.enabled
        require(tracked, "tracking.register", "needs a run in MLflow", "leave tracking.enabled=false out")


@dataclass(frozen=True)
class Payload:
    """What is logged of one run; `tracking.json` is this as JSON.

    start_ms, end_ms   milliseconds since 1970, UTC
    status             as `RunRecord.status`
    sweep              of which it is a job (see `pipeline.report.record.RunRecord`); else empty
    inputs             `pipeline.inputs.InputsRecord` as plain values; None where the run did not come so far
    run_id, uri        where it was logged; empty until it was
    """

    name: str
    experiment: str
    status: str
    start_ms: int
    end_ms: int
    parameters: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    sweep: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, Any] | None = None
    run_id: str = ""
    uri: str = ""


@dataclass(frozen=True)
class SweepPayload:
    """What is logged of a sweep as a whole; `tracking-sweep.json` in its folder is this as JSON.

    sweep         its `id` and `name`
    status        "passed", or what else the sweep came to
    run_id, uri   where it was logged; empty until it was
    """

    sweep: dict[str, str]
    experiment: str
    status: str
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    run_id: str = ""
    uri: str = ""


# ---- what the pipeline calls ---------------------------------------------------------------


def log(result: Any) -> list[str]:
    """Log the pipeline's `Result`; returns lines for the user. Never raises on account of the store."""
    config, folder, outputs = result.config.tracking, Path(result.folder), Path(result.config.outputs).absolute()
    lines = log_record(record_of(result), folder, config, outputs)
    if config.register is not None:
        lines.append(
            registered(folder, config.register, config.alias, store_of(config, outputs), config.timeout_seconds)
        )
    return lines


def keep(result: Any) -> None:
    """Write what a later `SYNC` logs, and log nothing: of a run that was stopped, or that the user does not track."""
    write_payload(payload_of(record_of(result), result.config.tracking.experiment), Path(result.folder))


def log_record(record: RunRecord, folder: Path, config: TrackingConfig, outputs: Path) -> list[str]:
    """Log `record` with every file in `folder`.

    outputs   where the store is if the config names none
    Returns what to tell the user: where the run is, or why it is not and which command logs it later.
    """
    payload = payload_of(record, config.experiment)
    write_payload(payload, folder)
    if not config.enabled:
        return []
    uri = store_of(config, outputs)
    try:
        run_id = send(payload, folder, uri, config.timeout_seconds)
    except TrackingError as error:
        return [
            f"not logged to MLflow: {error}",
            f"the results are in {folder}; to log them later: {SYNC} {folder} --uri {without_password(uri)}",
        ]
    return [f"logged to MLflow: experiment '{payload.experiment}', run {run_id}, store {without_password(uri)}"]


def store_of(config: TrackingConfig, outputs: Path) -> str:
    """The URI of the store that `config` names, or of the one in `outputs`; the same from every working directory."""
    return absolute(config.uri) if config.uri else default_uri(outputs)


def default_uri(outputs: Path) -> str:
    """sqlite in `outputs`, with an absolute path: the store is the same from every working directory."""
    return f"sqlite:///{(outputs.absolute() / 'mlflow.db').as_posix()}"


def registered(folder: Path, name: str, alias: str | None, uri: str, timeout_seconds: float) -> str:
    """Register the run in `folder` (see `pipeline.registry`); a line for the user, also where it cannot be."""
    from pipeline.registry import register

    try:
        version = register(folder, name, alias, uri, timeout_seconds)
    except TrackingError as error:
        return f"not registered as '{name}': {error}"
    return f"registered: version {version} of '{name}'" + (f", which is now '{name}@{alias}'" if alias else "")


# ---- what is logged ------------------------------------------------------------------------


def payload_of(record: RunRecord, experiment: str) -> Payload:
    """`record` as MLflow has it."""
    start = datetime.fromisoformat(record.started).timestamp() if record.started else time.time() - record.seconds
    validation = record.validation
    gate = "none" if validation is None else "passed" if validation.passed else "failed"
    parameters = {key: _text(value) for key, value in flatten(plain(record.config)).items()}
    parameters |= {f"versions.{name}": version for name, version in record.versions.items()}
    inputs = None if record.inputs is None else plain(asdict(record.inputs))
    parameters |= {} if inputs is None else input_parameters(inputs)
    if "tracking.uri" in parameters:
        parameters["tracking.uri"] = without_password(parameters["tracking.uri"])
    return Payload(
        name=record.name,
        experiment=experiment,
        status=record.status,
        start_ms=int(start * 1e3),
        end_ms=int((start + record.seconds) * 1e3),
        parameters=parameters,
        metrics=metrics_of(record),
        tags={
            "status": record.status,
            "gate": gate,
            "device": record.device.get("name", ""),
            "config_hash": record.config_hash,
            "git_revision": git_revision(),
        },
        sweep=dict(record.sweep),
        inputs=inputs,
    )


def metrics_of(record: RunRecord) -> dict[str, float]:
    """Every figure of the run by name, its unit in the name. No times where validation failed."""
    found: dict[str, float | None] = {"run_seconds": record.seconds}
    found |= {f"stage_seconds.{name}": value for name, value in record.stage_seconds.items()}
    if record.validation is not None:
        checks = [check.errors for check in record.validation.checks if check.errors is not None]
        found["error_ratio"] = record.validation.error_ratio
        found["relative_error.largest"] = max((errors.relative_error for errors in checks), default=None)
        found |= {f"task.{name}": value for name, value in record.validation.task_metrics.items()}
    if record.programs:
        found["program.kernel_launches"] = sum(program.launches for program in record.programs)
        found["program.torch_operators"] = sum(program.externs for program in record.programs)
        found["program.traffic_bytes"] = sum(program.traffic_bytes for program in record.programs)
    plans = [program.plan for program in record.programs if program.plan is not None]
    for name in ("arena_bytes", "lower_bound_bytes", "unshared_bytes"):
        if plans:
            found[f"plan.{name}"] = sum(getattr(plan, name) for plan in plans)
    found |= _speed_metrics(record)
    return {name: float(value) for name, value in found.items() if value is not None}


def _speed_metrics(record: RunRecord) -> dict[str, float | None]:
    benchmark = record.benchmark_to_show
    if benchmark is None:
        return {}
    found: dict[str, float | None] = {"conditions.other_cpus": benchmark.other_cpus}
    for name, value in asdict(benchmark.before).items():
        if isinstance(value, (int, float)):
            found[f"conditions.{name}"] = value
    if benchmark.noise is not None:
        found[f"noise_ratio.{benchmark.baseline}"] = benchmark.noise.value
    for engine in benchmark.engines:
        if engine.latency is not None:
            for name, value in asdict(engine.latency).items():
                found[f"latency_ms.{engine.name}.{name.removesuffix('_ms')}"] = value
        if engine.wall is not None and benchmark.clock != "perf_counter":
            found[f"wall_ms.{engine.name}.median"] = engine.wall.median_ms
        if engine.speedup is not None:
            for name, value in asdict(engine.speedup).items():
                found[f"speedup_ratio.{engine.name}.{name}"] = value
        found[f"items_per_second.{engine.name}"] = engine.items_per_second
        if engine.memory is not None:
            found[f"memory_bytes.{engine.name}.call"] = engine.memory.call_bytes
            found[f"memory_bytes.{engine.name}.held"] = engine.memory.held_bytes
        found[f"compile_seconds.{engine.name}.cold"] = engine.compile_time.cold_seconds
        found[f"compile_seconds.{engine.name}.warm"] = engine.compile_time.warm_seconds
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def git_revision() -> str:
    """The commit of the working tree that this file is in, `-dirty` if it was changed; empty outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


# ---- the run folder ------------------------------------------------------------------------


def write_payload(payload: Payload, folder: Path) -> None:
    """Write `tracking.json`, whole or not at all."""
    _write(payload, folder / PAYLOAD)


def read_payload(folder: Path) -> Payload:
    """What `write_payload` wrote. Raises `TrackingError` where there is none or it is not one."""
    return _read(Payload, folder / PAYLOAD)


def write_sweep_payload(payload: SweepPayload, folder: Path) -> None:
    """Write `tracking-sweep.json`, whole or not at all."""
    _write(payload, folder / SWEEP_PAYLOAD)


def read_sweep_payload(folder: Path) -> SweepPayload:
    """What `write_sweep_payload` wrote. Raises `TrackingError` where there is none or it is not one."""
    return _read(SweepPayload, folder / SWEEP_PAYLOAD)


def _write(payload: Payload | SweepPayload, path: Path) -> None:
    write_whole(path, json.dumps(plain(asdict(payload)), indent=1, allow_nan=False) + "\n")


def _read(kind: type[_P], path: Path) -> _P:
    try:
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise TrackingError(f"{path} cannot be read: {error}") from error


# ---- the store -----------------------------------------------------------------------------


def send(payload: Payload, folder: Path, uri: str, timeout_seconds: float) -> str:
    """Log `payload` and the files of `folder` to the store at `uri`; the run's id there.

    `tracking.json` then says where the run is. Raises `TrackingError` where the store does not answer or refuses.
    """
    with reached(uri, timeout_seconds):
        run_id = _log(payload, folder, uri)
    write_payload(replace(payload, run_id=run_id, uri=without_password(uri)), folder)
    return run_id


def open_sweep(sweep: Mapping[str, str], experiment: str, uri: str, timeout_seconds: float) -> str:
    """Make the parent run of a sweep, and the store if there is none; its id. Raises `TrackingError` as `send` does."""
    with reached(uri, timeout_seconds):
        client, now = client_of(uri), int(time.time() * 1e3)
        return sweep_runs.parent_of(client, experiment_of(client, experiment, uri), sweep, now)


def send_sweep(payload: SweepPayload, counting: Collection[str], folder: Path, uri: str, timeout_seconds: float) -> str:
    """Bring the parent run of a sweep up to date; its id. Raises `TrackingError` as `send` does.

    counting   the ids of the runs that are its jobs
    folder     of the sweep: the files in it, not those of its jobs, are logged
    """
    with reached(uri, timeout_seconds):
        client, now = client_of(uri), int(time.time() * 1e3)
        where = experiment_of(client, payload.experiment, uri)
        run_id = sweep_runs.parent_of(client, where, payload.sweep, now)
        for name, value in payload.metrics.items():
            client.log_metric(run_id, name, value, now)
        for name, text in {"status": payload.status, "git_revision": git_revision(), **payload.tags}.items():
            client.set_tag(run_id, name, text)
        for entry in sorted(folder.iterdir()):
            if entry.is_file() and not entry.name.startswith(".") and entry.name != SWEEP_PAYLOAD:
                client.log_artifact(run_id, str(entry))
        sweep_runs.end_others(client, where, payload.sweep, counting)
        client.set_terminated(run_id, "FINISHED" if payload.status == "passed" else "FAILED", now)
    write_sweep_payload(replace(payload, run_id=run_id, uri=without_password(uri)), folder)
    return run_id


def _log(payload: Payload, folder: Path, uri: str) -> str:
    client = client_of(uri)
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, MAX_PARAM_VAL_LENGTH, MAX_TAG_VAL_LENGTH

    experiment = experiment_of(client, payload.experiment, uri)
    place = sweep_runs.child_tags(client, experiment, payload.sweep, payload.start_ms) if payload.sweep else {}
    run = client.create_run(experiment, payload.start_ms, tags=place, run_name=payload.name)
    run_id = str(run.info.run_id)

    def key(name: str) -> str:
        return re.sub(r"[^\w.\-/ ]", "_", name)[:MAX_ENTITY_KEY_LENGTH]

    params = [Param(key(name), _fitted(text, MAX_PARAM_VAL_LENGTH)) for name, text in payload.parameters.items()]
    tags = [RunTag(key(name), _fitted(text, MAX_TAG_VAL_LENGTH)) for name, text in payload.tags.items()]
    metrics = [Metric(key(name), value, payload.end_ms, 0) for name, value in payload.metrics.items()]
    # A server takes at most 100 parameters or tags at once, and 1000 values in all.
    for start in range(0, max(len(params), len(tags), len(metrics)), 100):
        part = slice(start, start + 100)
        client.log_batch(run_id, metrics[part], params[part], tags[part])
    if payload.inputs is not None:
        client.log_inputs(run_id, [dataset_input(payload.inputs)])
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            client.log_artifacts(run_id, str(entry), entry.name)
        elif entry.name != PAYLOAD:  # a copy of it in the store would look like one more run to log
            client.log_artifact(run_id, str(entry))
    done = "FINISHED" if payload.status in ("passed", "unvalidated") else "FAILED"
    client.set_terminated(run_id, done, payload.end_ms)
    if payload.sweep:
        sweep_runs.supersede(client, experiment, payload.sweep, run_id)
    return run_id


def _fitted(text: str, limit: int) -> str:
    """`text` cut to what MLflow takes, and saying so."""
    note = f" ... (cut from {len(text)} characters; whole in results.json)"
    return text if len(text) <= limit else text[: limit - len(note)] + note
