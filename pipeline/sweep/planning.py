"""From a job to what is known of it: who it is, and whether it has a result already.

Comes in: jobs, in any number of portions. Goes out: each with its record; that of a job which is not run again is the
one it had. A job equal to one of this sweep is not run twice either, whatever the user says of earlier sweeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config import Config
from pipeline.pool.client import Pool
from pipeline.sweep import record as records
from pipeline.sweep.identity import Identity
from pipeline.sweep.record import JobRecord
from pipeline.sweep.source import Job, Rerun
from pipeline.sweep.verdict import verdict
from stages.ir.errors import UserError

# What every job imports sooner or later; `modules_of` has what some need besides.
WARM = ("pipeline.sweep.job", "torch._dynamo", "torch._functorch.aot_autograd")
_LIBRARIES = {"transformers": "transformers", "minilm": "transformers", "timm": "timm", "diffusers": "diffusers"}


@dataclass
class Planned:
    """A job and what is known of it by now."""

    job: Job
    record: JobRecord


class Planner:
    """Numbers the jobs of a sweep and finds what earlier sweeps know of them.

    strict   whether a job that cannot run on this machine is an error of the whole sweep, or a job that has failed
    rerun    which of the jobs that ran before run again
    outputs  where sweeps are; named: the folder of this one, where the user named it
    """

    def __init__(self, pool: Pool, strict: bool, rerun: Rerun, outputs: Path, named: Path | None = None) -> None:
        self._known = records.earlier(outputs.absolute(), named)
        self._pool, self._strict, self._rerun = pool, strict, rerun
        self._next = 0

    def plan(self, jobs: Sequence[Job]) -> list[Planned]:
        """The jobs under the next numbers. Raises `UserError` as `identified` does where the sweep is strict."""
        found = identified(jobs, self._pool) if self._strict else _identities(jobs, self._pool)
        numbers = range(self._next, self._next + len(jobs))
        self._next += len(jobs)
        return [self._planned(*each) for each in zip(numbers, jobs, found, strict=True)]

    def _planned(self, number: int, job: Job, identity: Identity | str) -> Planned:
        if job.fault or isinstance(identity, str):
            line = next(iter((job.fault or str(identity)).splitlines()), "it cannot be run")
            return Planned(job, JobRecord(number, job.config.job, job.overrides, "", status="error", reason=line))
        return planned_of(number, job, identity, self._known, self._rerun)


def planned_of(
    number: int, job: Job, identity: Identity, known: Mapping[str, JobRecord], rerun: Rerun = "failed"
) -> Planned:
    """The job with its earlier result, if that is to be kept, or with a record still to be filled."""
    before = known.get(identity.key)
    if before is not None and records.to_keep(before, rerun):
        return Planned(job, kept(before, number, job))
    about = (job.config.job, job.overrides, identity.key, identity.config_hash, identity.code, identity.device)
    return Planned(job, JobRecord(number, *about))


def kept(before: JobRecord, number: int, job: Job) -> JobRecord:
    """The record of `job`, which is not run, from that of its equal."""
    return replace(before, number=number, overrides=job.overrides, kept=True)


def identified(jobs: Sequence[Job], pool: Pool) -> list[Identity]:
    """Who each job is. Raises `UserError` where one cannot run on this machine."""
    found = _identities(jobs, pool)
    for identity in found:
        if isinstance(identity, str):
            message, _, mend = identity.partition("\n  ")
            raise UserError(message, mend)
    return [identity for identity in found if isinstance(identity, Identity)]


def _identities(jobs: Sequence[Job], pool: Pool) -> list[Identity | str]:
    """Who each job is; or, as text, why it cannot run on this machine."""
    ended = pool.call("pipeline.sweep.job:identify", [job.config for job in jobs])
    if ended.value is None:
        return [f"who the jobs are could not be found: {ended.raised or verdict(ended, 0, 0)[1]}"] * len(jobs)
    found: list[Identity | str] = ended.value
    return found


def sweep_id(keys: Sequence[str]) -> str:
    """Of the sweep whose jobs have these keys: the same for the same jobs, code and device, in any order."""
    return hashlib.sha256("".join(sorted(keys)).encode()).hexdigest()[:16]


def modules_of(config: Config) -> Iterator[str]:
    """What a job of `config` imports besides `WARM`."""
    if config.model.library in _LIBRARIES:
        yield _LIBRARIES[config.model.library]
    if "benchmark" in config.stages and any(peer.startswith("inductor") for peer in config.engine.peers):
        yield "torch._inductor.compile_fx"
    if config.tracking.enabled:
        yield "mlflow.tracking"
