"""The sweep itself: which jobs have a result already, run the others, tell, and keep all of it.

Comes in: the jobs as Hydra expanded them, each with its checked config. Goes out: an exit code: 0 where every job is
right, 1 where one is not, 130 after Ctrl-C. Whatever becomes of a job, the sweep goes on; whatever becomes of the
sweep, results that were there stay, and the same command goes on from them.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.config import Config
from pipeline.pool import processes
from pipeline.pool.client import Pool, PoolDied
from pipeline.pool.task import Ended, Task, Told
from pipeline.recipe import Recipe
from pipeline.sweep import record as records
from pipeline.sweep import table
from pipeline.sweep.board import Board
from pipeline.sweep.identity import Identity
from pipeline.sweep.job import Publication, Stage, Work
from pipeline.sweep.record import JobRecord
from pipeline.sweep.verdict import verdict
from pipeline.tracking import SYNC
from stages.ir.errors import UserError
from stages.ir.words import counted

LOG = "log.txt"
OK, FAILED, INTERRUPTED = 0, 1, 130

# What every job imports sooner or later; `_modules` has what some need besides.
WARM = ("pipeline.sweep.job", "torch._dynamo", "torch._functorch.aot_autograd")
_LIBRARIES = {"transformers": "transformers", "minilm": "transformers", "timm": "timm", "diffusers": "diffusers"}

_TICK_SECONDS = 0.5
GRACE_SECONDS = 10.0  # that a job has after Ctrl-C for writing what it has
_MLFLOW_SECONDS = 600.0


@dataclass(frozen=True)
class Job:
    """One job as Hydra expanded it."""

    overrides: tuple[str, ...]
    config: Config
    recipe: Recipe | None


@dataclass
class Planned:
    """A job and what is known of it by now."""

    job: Job
    record: JobRecord


def run_sweep(
    jobs: Sequence[Job], pool: Pool, claim: Callable[[], Path], console: Console, named: Path | None = None
) -> int:
    """Run the sweep; returns the exit code. Raises `UserError` if a job cannot run at all: nothing is written then.

    pool    a warmed one (see `WARM`)
    claim   makes the folder of the sweep and returns it
    named   that folder, where the user named one: earlier results are looked for there too
    """
    first = jobs[0].config
    if not first.sweep.dry_run:
        pool.warm({name for job in jobs for name in _modules(job.config)})
    identities = identified(jobs, pool)
    known = records.earlier(Path(first.outputs).absolute(), named)
    planned = [planned_of(number, job, identities[number], known) for number, job in enumerate(jobs)]
    if first.sweep.dry_run:
        console.print(table.plan([each.record for each in planned]))
        return OK
    folder = claim()
    kept = sum(each.record.kept for each in planned)
    said = f"sweep: {counted(len(jobs), 'job')}, {kept} with a result already; results in {folder}"
    console.print(said, markup=False, soft_wrap=True)
    sweep = {"id": sweep_id(identities), "name": folder.name}
    running = Sweep(planned, pool, folder, sweep, console)
    try:
        running.announce()
    except KeyboardInterrupt:
        with suppress(OSError):
            folder.rmdir()
        raise
    interrupted = running.run()
    try:
        return running.finish(interrupted)
    except KeyboardInterrupt:
        console.print(f"interrupted while the sweep was logged; the same command, or {SYNC}, makes it up")
        return INTERRUPTED


def _modules(config: Config) -> Iterator[str]:
    """What a job of `config` imports besides `WARM`."""
    if config.model.library in _LIBRARIES:
        yield _LIBRARIES[config.model.library]
    if "benchmark" in config.stages and any(peer.startswith("inductor") for peer in config.engine.peers):
        yield "torch._inductor.compile_fx"
    if config.tracking.enabled:
        yield "mlflow.tracking"


def sweep_id(identities: Sequence[Identity]) -> str:
    """The same for the same jobs under the same code on the same device, in any order."""
    return hashlib.sha256("".join(sorted(each.key for each in identities)).encode()).hexdigest()[:16]


def identified(jobs: Sequence[Job], pool: Pool) -> list[Identity]:
    """Who the jobs are. Raises `UserError` where one of them cannot run at all."""
    ended = pool.call("pipeline.sweep.job:identify", [job.config for job in jobs])
    if isinstance(ended.value, str):
        message, _, mend = ended.value.partition("\n  ")
        raise UserError(message, mend)
    if ended.value is None:
        raise UserError(f"the jobs of the sweep cannot be told apart: {ended.raised or verdict(ended, 0, 0)[1]}")
    found: list[Identity] = ended.value
    return found


def planned_of(number: int, job: Job, identity: Identity, known: dict[str, JobRecord]) -> Planned:
    """The job with its earlier result, if that is to be kept, or with a record still to be filled."""
    before = known.get(identity.key)
    if before is not None and records.to_keep(before, job.config.sweep.rerun):
        return Planned(job, replace(before, number=number, overrides=job.overrides, kept=True))
    about = (job.config.job, job.overrides, identity.key, identity.config_hash, identity.code, identity.device)
    return Planned(job, JobRecord(number, *about))


class Sweep:
    """The jobs of one sweep, on their way. folder: the sweep's; job_folder: of its only job, where another made it."""

    def __init__(
        self,
        planned: Sequence[Planned],
        pool: Pool,
        folder: Path,
        sweep: dict[str, str],
        console: Console,
        job_folder: Path | None = None,
    ) -> None:
        self.planned, self.pool, self.folder, self.sweep, self.console = list(planned), pool, folder, sweep, console
        self.job_folder = job_folder
        self.settings = planned[0].job.config.sweep
        self.running: dict[int, float] = {}
        self.notes: list[str] = []

    def announce(self) -> None:
        """Make the sweep known to MLflow, before its jobs are logged there."""
        tracked = [each.job.config for each in self.planned if each.job.config.tracking.enabled]
        for line in (self._in_process("announce", (tracked[0], self.sweep)) or []) if tracked else []:
            self._say(line)

    # ---- running -------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run every job that has no result yet; whether the sweep was interrupted."""
        waiting = [each for each in self.planned if not each.record.kept]
        kept = len(self.planned) - len(waiting)
        with _signals() as signals, Board(self.console, len(self.planned), kept, self.settings.jobs) as board:
            stopping = False
            while self.running or (waiting and not signals.count):
                if signals.count and not stopping:
                    stopping = True
                    board.say("stopping: the running jobs write what they have; once more ends them at once")
                    self.pool.stop(GRACE_SECONDS)
                if signals.count > 1:
                    self.pool.stop(0.0)
                try:
                    while waiting and len(self.running) < self.settings.jobs and not signals.count:
                        self._start(waiting.pop(0), board)
                    for event in self.pool.events(_TICK_SECONDS):
                        self._heard(event, board)
                except PoolDied as death:
                    self._revive(death, board)
                board.update()
            return signals.count > 0

    def _start(self, planned: Planned, board: Board) -> None:
        """Start a job. One whose folder cannot be made has failed."""
        record, config = planned.record, planned.job.config
        folder = self.job_folder or self.folder / f"{record.number}-{record.name}"
        planned.record = record = replace(record, folder=str(folder), started=time.time())
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            planned.record = replace(record, status="error", reason=f"its folder cannot be made: {error.strerror}")
            board.ended(planned.record)
            return
        work = Work(record, config, planned.job.recipe, self.sweep if self.sweep["id"] else {})
        task = Task(
            record.number,
            "pipeline.sweep.job:run",
            work,
            log=str(folder / LOG),
            command=("torchweld", *record.overrides),
            timeout_seconds=config.sweep.timeout_seconds,
            memory_mib=memory_limit(config),
        )
        self.pool.start(task)
        self.running[record.number] = time.monotonic()
        board.started(record)

    def _heard(self, event: Told | Ended, board: Board) -> None:
        if isinstance(event, Told):
            if isinstance(event.value, Stage):
                board.stage(event.number, event.value.name)
            return
        if event.number in self.running:
            self._ended(event, board)

    def _ended(self, ended: Ended, board: Board) -> None:
        """Note how a job ended: as its own record says, or as its process did."""
        planned = next(each for each in self.planned if each.record.number == ended.number)
        seconds = ended.seconds - ended.waited
        own = records.read(Path(planned.record.folder) / records.FILE)
        if own is not None and own.key == planned.record.key and own.started >= planned.record.started:
            record = replace(own, seconds=seconds, peak_mib=ended.peak_mib)
        else:
            config = planned.job.config
            status, reason = verdict(ended, config.sweep.timeout_seconds, memory_limit(config))
            log = records.tail(Path(planned.record.folder) / LOG, self.settings.log_lines)
            record = replace(planned.record, status=status, reason=reason, log_tail=log)
            record = replace(record, seconds=seconds, peak_mib=ended.peak_mib)
        planned.record = record
        del self.running[ended.number]
        try:
            records.write(record)
        except OSError as error:
            self.notes.append(f"job {record.number}: its record cannot be written: {error.strerror}")
        board.ended(record)

    def _revive(self, death: PoolDied, board: Board) -> None:
        """Go on with another process to fork from. The jobs that ran went with the first one."""
        board.say(f"the process that jobs are forked from is gone ({death}); another one goes on")
        for number, since in list(self.running.items()):
            self._ended(Ended(number, -signal.SIGKILL, seconds=time.monotonic() - since), board)
        self.pool.restart()

    # ---- at the end ----------------------------------------------------------------------------

    def finish(self, interrupted: bool) -> int:
        """Show and write the table, log the sweep; the exit code."""
        outcome = [each.record for each in self.planned]
        rows = table.rows_of(outcome)
        self.console.print(table.render(rows, self.folder.name))
        for note in self.notes:
            self._say(f"note: {note}")
        self._write(rows)
        right = all(record.done for record in outcome)
        self._publish("interrupted" if interrupted else "passed" if right else "failed", rows)
        return INTERRUPTED if interrupted else OK if right else FAILED

    def _write(self, rows: Sequence[table.Row]) -> None:
        try:
            table.write(rows, self.folder, self.sweep)
        except OSError as error:
            self._say(f"note: the table cannot be written into {self.folder}: {error.strerror}")

    def _publish(self, status: str, rows: Sequence[table.Row]) -> None:
        """Log the jobs that could not log themselves, then the sweep with its table, in which the runs' ids stand."""
        tracked = [
            (each.record, each.job.config)
            for each in self.planned
            if each.record.folder and each.job.config.tracking.enabled
        ]
        logged = self._in_process("log_jobs", (tracked, self.sweep)) if tracked else None
        if logged is None:
            return
        counting, missed = logged
        for line in missed:
            self._say(line)
        self._write(rows)
        counts = {name: sum(row.record.status == name for row in rows) for name in records.STATUSES}
        metrics = {f"jobs.{name.replace(' ', '_')}": float(count) for name, count in counts.items()}
        about = (tracked[0][1], self.sweep, status, metrics, tuple(counting), str(self.folder))
        line = self._in_process("log_sweep", Publication(*about))
        if line is not None:
            self._say(line)

    def _in_process(self, function: str, argument: object) -> Any:
        """What a function of `pipeline.sweep.job` returns that talks to MLflow; None where it came to nothing."""
        try:
            ended = self.pool.call(f"pipeline.sweep.job:{function}", argument, _MLFLOW_SECONDS)
        except PoolDied as death:
            ended = Ended(-1, 1, raised=str(death))
        if ended.code:
            self._say(f"MLflow was not told of the sweep: {ended.raised or verdict(ended, _MLFLOW_SECONDS, 0)[1]}")
        return ended.value

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


def memory_limit(config: Config) -> float:
    """Of one job, in MiB."""
    return config.sweep.memory_mib or 0.9 * processes.machine_mib() / config.sweep.jobs


class _Count:
    count = 0


@contextmanager
def _signals() -> Iterator[_Count]:
    """Count Ctrl-C and what asks a process to end, in place of being ended by them, here and there in the middle."""
    counted = _Count()
    if threading.current_thread() is not threading.main_thread():
        yield counted
        return

    def note(*about: object) -> None:
        counted.count += 1

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield counted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
