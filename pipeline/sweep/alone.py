"""A job by itself, for a launcher of Hydra's: forked, held to its limits, skipped and recorded as in our own sweeps.

Comes in: a job and what is to be known of its sweep. Goes out: its record, in its folder.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pipeline.pool.client import Pool, PoolDied
from pipeline.pool.task import Ended, Told
from pipeline.sweep import record as records
from pipeline.sweep.identity import identity_of
from pipeline.sweep.planning import WARM, identified, planned_of
from pipeline.sweep.record import JobRecord
from pipeline.sweep.run import GRACE_SECONDS, Sweep
from pipeline.sweep.source import Grid, Job
from pipeline.sweep.worker import Worker
from stages.ir.errors import UserError


def run_alone(job: Job, folder: Path, number: int, worker: Worker) -> JobRecord:
    """Run one job in a process of its own, held to its limits, unless it has a result; its record."""
    began = time.time()
    with _Watching(worker) as pool:
        try:
            (identity,) = identified([job], pool)
        except (UserError, PoolDied) as error:  # such as no GPU on this machine: the other jobs may do better
            nobody = planned_of(number, job, identity_of(job.config, "", {}), {}).record
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            failed = replace(nobody, status="error", reason=reason, folder=str(folder), started=began)
            records.write(failed)
            return failed
        known = records.earlier(Path(job.config.outputs).absolute(), folder.parent)
        planned = planned_of(number, job, identity, known, job.config.sweep.rerun or Grid.rerun)
        if not planned.record.kept:
            Sweep.of([planned], pool, folder.parent, dict(worker.sweep), Console(quiet=True), folder).run()
        elif Path(planned.record.folder) != folder:
            records.write(planned.record, folder)
        return planned.record


class _Watching(Pool):
    """Its task ends when the sweep is asked to stop, or when the command is gone whose child this process is."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._child = worker.runs_in(os.getppid())
        self._asked = False
        super().__init__(WARM)

    def events(self, timeout_seconds: float | None) -> list[Told | Ended]:
        if self._child and not self._worker.runs_in(os.getppid()):
            self.stop(0.0)
        elif self._worker.stopped():
            self.stop(GRACE_SECONDS)
        return super().events(timeout_seconds)

    def stop(self, grace_seconds: float) -> None:
        if not (self._asked and grace_seconds):  # interrupted twice, a job could not write what it has
            super().stop(grace_seconds)
        self._asked = True
