"""The sweep itself: which jobs have a result already, run the others, tell, and keep all of it.

Comes in: a source of jobs (a grid, or a search that hears how its jobs end). Goes out: an exit code: 0 where every job
is right (of a search: where one is that meets its goals), 1 otherwise, 130 after Ctrl-C. Whatever becomes of a job, the
sweep goes on; whatever becomes of the sweep, results that were there stay, and the same command goes on from them.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.config import Config
from pipeline.pool import processes
from pipeline.pool.client import Pool, PoolDied
from pipeline.pool.task import Ended, Task, Told
from pipeline.search.conclusion import Conclusion, conclude
from pipeline.sweep import record as records
from pipeline.sweep import table
from pipeline.sweep.board import Board
from pipeline.sweep.job import Publication, Stage, Work
from pipeline.sweep.planning import Planned, Planner, kept, modules_of, sweep_id
from pipeline.sweep.record import JobRecord
from pipeline.sweep.source import Grid, Job, Source
from pipeline.sweep.verdict import verdict
from pipeline.tracking import SYNC

LOG = "log.txt"
OK, FAILED, INTERRUPTED = 0, 1, 130

_TICK_SECONDS = 0.5
GRACE_SECONDS = 10.0  # that a job has after Ctrl-C for writing what it has
_MLFLOW_SECONDS = 600.0


def run_sweep(
    source: Source, pool: Pool, claim: Callable[[], Path], console: Console, named: Path | None = None
) -> int:
    """Run the sweep; returns the exit code. Raises `UserError` if a job cannot run at all: nothing is written then.

    pool    a warmed one (see `WARM`)
    claim   makes the folder of the sweep and returns it
    named   that folder, where the user named one: earlier results are looked for there too
    """
    config = source.config
    planner = Planner(pool, source.strict, config.sweep.rerun or source.rerun, Path(config.outputs), named)
    running = Sweep(source, planner, pool, console)
    running.propose(source.certain() if config.sweep.dry_run else config.sweep.jobs)
    if config.sweep.dry_run:
        console.print(table.plan([each.record for each in running.planned], source.expected()))
        return OK
    folder = claim()
    done = sum(each.record.kept for each in running.planned)
    said = f"sweep: {source.outlook()}, {done} with a result already; results in {folder}"
    console.print(said, markup=False, soft_wrap=True)
    running.opened(folder)
    running.announce()
    return running.concluded(running.run())


class Sweep:
    """The jobs of one sweep, on their way.

    folder       the sweep's, once it has one
    sweep        who it is (see `pipeline.report.record.RunRecord`); empty for a job alone
    job_folder   of its only job, where another made it
    """

    def __init__(self, source: Source, planner: Planner | None, pool: Pool, console: Console) -> None:
        self.source, self.planner, self.pool, self.console = source, planner, pool, console
        self.settings = source.config.sweep
        self.folder = Path()
        self.job_folder: Path | None = None
        self.sweep: dict[str, str] = {}
        self.planned: list[Planned] = []
        self.asked: list[Job] = []  # and not yet known
        self.waiting: list[Planned] = []
        self.running: dict[int, float] = {}
        self.ended: dict[str, JobRecord] = {}  # by key, of this sweep
        self.notes: list[str] = []

    @classmethod
    def of(
        cls,
        planned: Sequence[Planned],
        pool: Pool,
        folder: Path,
        sweep: dict[str, str],
        console: Console,
        job_folder: Path | None = None,
    ) -> Sweep:
        """A sweep of jobs that are all known."""
        made = cls(Grid([each.job for each in planned]), None, pool, console)
        made.folder, made.sweep, made.job_folder, made.planned = folder, sweep, job_folder, list(planned)
        made.waiting = [each for each in planned if not each.record.kept]
        return made

    # ---- before jobs run -----------------------------------------------------------------------

    def propose(self, wanted: int) -> None:
        """Ask the source for jobs until one has to be run, or it has none; those that have a result are told of."""
        while self.planner is not None and not self.waiting and (self.asked or self._ask(wanted)):
            if not self.settings.dry_run:
                self.pool.warm({name for job in self.asked for name in modules_of(job.config)})
            fresh = self.planner.plan(self.asked)
            self.asked = []
            self.planned += fresh
            for each in fresh:
                if each.record.status != "not run":
                    self.source.tell(each.record.number, each.record)
                elif not self._twin(each):
                    self.waiting.append(each)

    def _ask(self, wanted: int) -> bool:
        self.asked = list(self.source.ask(wanted))
        return bool(self.asked)

    def _twin(self, planned: Planned) -> bool:
        """Whether an equal job of this sweep has ended; `planned` then has its result, and is not run."""
        before = self.ended.get(planned.record.key)
        if before is not None:
            planned.record = kept(before, planned.record.number, planned.job)
            self.source.tell(planned.record.number, planned.record)
        return before is not None

    def opened(self, folder: Path) -> None:
        """Hear where the sweep's files go."""
        self.folder = folder
        keys = [each.record.key for each in self.planned]
        self.sweep = {"id": self.source.id or sweep_id(keys), "name": folder.name}
        self.source.opened(folder)

    def announce(self) -> None:
        """Make the sweep known to MLflow, before its jobs are logged there. Ctrl-C leaves no empty folder."""
        tracked = [each.job.config for each in self.planned if each.job.config.tracking.enabled]
        try:
            for line in (self._in_process("announce", (tracked[0], self.sweep)) or []) if tracked else []:
                self._say(line)
        except KeyboardInterrupt:
            with suppress(OSError):
                self.folder.rmdir()
            raise

    # ---- running -------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run every job that has no result yet; whether the sweep was interrupted."""
        with _signals() as signals, Board(self.console, at_once=self.settings.jobs) as board:
            stopping = False
            while True:
                if signals.count and not stopping:
                    stopping = True
                    board.say("stopping: the running jobs write what they have; once more ends them at once")
                    self.pool.stop(GRACE_SECONDS)
                if signals.count > 1:
                    self.pool.stop(0.0)
                try:
                    if not signals.count:
                        self._fill(board)
                    if not self.running:
                        return signals.count > 0
                    for event in self.pool.events(_TICK_SECONDS):
                        self._heard(event, board)
                except PoolDied as death:
                    self._revive(death, board)
                board.update()

    def _fill(self, board: Board) -> None:
        """Start jobs, as long as there are any and more may run at once. One equal to a running job waits for it."""
        while len(self.running) < self.settings.jobs:
            self.propose(self.settings.jobs - len(self.running))
            board.expect(self.source.expected(), sum(each.record.kept for each in self.planned))
            going = {each.record.key for each in self.planned if each.record.number in self.running}
            free = next((each for each in self.waiting if each.record.key not in going), None)
            if free is None:
                return
            self.waiting.remove(free)
            try:
                self._start(free, board)
            except PoolDied:
                self.waiting.insert(0, free)
                raise

    def _start(self, planned: Planned, board: Board) -> None:
        """Start a job. One whose folder cannot be made has failed."""
        record, config = planned.record, planned.job.config
        folder = self.job_folder or self.folder / f"{record.number}-{record.name}"
        planned.record = record = replace(record, folder=str(folder), started=time.time())
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            planned.record = replace(record, status="error", reason=f"its folder cannot be made: {error.strerror}")
            self._over(planned, board)
            return
        work = Work(record, config, planned.job.recipe, self.sweep)
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
        self._over(planned, board)

    def _over(self, planned: Planned, board: Board) -> None:
        """Tell everyone of a job that has ended; those equal to it have its result."""
        record = planned.record
        if record.status != "interrupted":
            self.ended[record.key] = record
        board.ended(record)
        self.source.tell(record.number, record)
        self.waiting = [each for each in self.waiting if not self._twin(each)]

    def _revive(self, death: PoolDied, board: Board) -> None:
        """Go on with another process to fork from. The jobs that ran went with the first one."""
        board.say(f"the process that jobs are forked from is gone ({death}); another one goes on")
        for number, since in list(self.running.items()):
            self._ended(Ended(number, -signal.SIGKILL, seconds=time.monotonic() - since), board)
        self.pool.restart()

    # ---- at the end ----------------------------------------------------------------------------

    def concluded(self, interrupted: bool) -> int:
        """As `finish`; Ctrl-C meanwhile ends the sweep with what was logged by then."""
        try:
            return self.finish(interrupted)
        except KeyboardInterrupt:
            self._say(f"interrupted while the sweep was logged; the same command, or {SYNC}, makes it up")
            return INTERRUPTED

    def finish(self, interrupted: bool) -> int:
        """Show and write the table and what a search came to, log the sweep; the exit code."""
        outcome = [each.record for each in self.planned]
        rows = table.rows_of(outcome)
        search = conclude(rows, self.source, self.folder) if self.source.config.search.ranks else None
        rows = search.marked() if search is not None else rows
        self.console.print(table.render(rows, self.folder.name))
        self._write(rows, search)
        for line in [*(f"note: {note}" for note in self.notes), *([] if search is None else search.lines())]:
            self._say(line)
        right = all(record.done for record in outcome)
        if search is not None and not self.source.strict:
            right = search.winner is not None
        self._publish("interrupted" if interrupted else "passed" if right else "failed", rows, search)
        return INTERRUPTED if interrupted else OK if right else FAILED

    def _write(self, rows: Sequence[table.Row], search: Conclusion | None) -> None:
        try:
            if search is not None:
                search.write()
            table.write(rows, self.folder, self.sweep, search)
        except OSError as error:
            self._say(f"note: the table cannot be written into {self.folder}: {error.strerror}")

    def _publish(self, status: str, rows: Sequence[table.Row], search: Conclusion | None) -> None:
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
        self._write(rows, search)
        counts = {name: sum(row.record.status == name for row in rows) for name in records.STATUSES}
        metrics = {f"jobs.{name.replace(' ', '_')}": float(count) for name, count in counts.items()}
        metrics |= search.metrics() if search is not None else {}
        tags = search.tags() if search is not None else {}
        about = (tracked[0][1], self.sweep, status, metrics, tags, tuple(counting), str(self.folder))
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
