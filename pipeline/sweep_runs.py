"""A sweep in MLflow: one parent run, the runs of its jobs below it, and no run that no longer counts left unmarked.

Comes in: MLflow's client and what a payload says of its sweep. A sweep that is resumed has the same id, and goes on
under the same parent. A job that runs again leaves its earlier run where it is, with the tag `superseded`; one whose
process was killed while it was logged is ended as KILLED.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

SWEEP, JOB, KIND, SUPERSEDED = "torchweld.sweep", "torchweld.job", "torchweld.kind", "superseded"
_PARENT = "mlflow.parentRunId"  # MLflow's own tag: its UI shows children below their parent


def parent_of(client: Any, experiment: str, sweep: Mapping[str, str], start_ms: int) -> str:
    """The run id of the sweep's parent, made if there is none. Two that made one at once take the first."""
    found = _parents(client, experiment, sweep["id"])
    if not found:
        tags = {SWEEP: sweep["id"], KIND: "sweep", "status": "running"}
        client.create_run(experiment, start_ms, tags=tags, run_name=sweep.get("name") or f"sweep-{sweep['id']}")
        found = _parents(client, experiment, sweep["id"])
    return str(found[0].info.run_id)


def _parents(client: Any, experiment: str, sweep: str) -> list[Any]:
    wanted = f"tags.`{SWEEP}` = '{sweep}' and tags.`{KIND}` = 'sweep'"
    return list(client.search_runs([experiment], wanted, order_by=["attributes.start_time ASC"]))


def child_tags(client: Any, experiment: str, sweep: Mapping[str, str], start_ms: int) -> dict[str, str]:
    """The tags that make a run a job of the sweep."""
    parent = parent_of(client, experiment, sweep, start_ms)
    return {_PARENT: parent, SWEEP: sweep["id"], JOB: sweep["job"], KIND: "job"}


def supersede(client: Any, experiment: str, sweep: Mapping[str, str], run_id: str) -> None:
    """Mark the earlier runs of the job of `sweep` as such; `run_id` is the one that counts."""
    wanted = f"tags.`{SWEEP}` = '{sweep['id']}' and tags.`{JOB}` = '{sweep['job']}'"
    for run in client.search_runs([experiment], wanted):
        if run.info.run_id != run_id and SUPERSEDED not in run.data.tags:
            client.set_tag(run.info.run_id, SUPERSEDED, run_id)
            _end(client, run)


def end_others(client: Any, experiment: str, sweep: Mapping[str, str], counting: Collection[str]) -> None:
    """End the runs of the sweep that are none of `counting`: what a killed process was about to log."""
    wanted = f"tags.`{SWEEP}` = '{sweep['id']}' and tags.`{KIND}` = 'job'"
    for run in client.search_runs([experiment], wanted, max_results=5000):
        if run.info.run_id not in counting and SUPERSEDED not in run.data.tags:
            client.set_tag(run.info.run_id, SUPERSEDED, "true")
            _end(client, run)


def _end(client: Any, run: Any) -> None:
    if run.info.status == "RUNNING":
        client.set_terminated(run.info.run_id, "KILLED")
