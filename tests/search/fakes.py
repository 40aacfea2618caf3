"""Searches whose jobs cost nothing: the pool does them here and now, by a function from overrides to figures."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.compose import compose
from pipeline.config import Config
from pipeline.configure import configuration
from pipeline.pool.task import Ended, Task
from pipeline.report.record import RunRecord, config_hash, plain, write_results
from pipeline.search.build import search_of
from pipeline.search.config import SearchConfig
from pipeline.search.trials import Search
from pipeline.sweep import record as records
from pipeline.sweep.config import SweepConfig
from pipeline.sweep.identity import Identity
from pipeline.sweep.run import run_sweep
from pipeline.sweep.source import Job
from stages.benchmark import Benchmark, CompileTime, Conditions, EngineResult, MemoryUse, Summary
from stages.ir.errors import UserError
from stages.validate import Errors, OutputCheck, Validation


class Killed(BaseException):
    """Stands for kill -9: nothing of the sweep goes on."""


@dataclass(frozen=True)
class Figures:
    """What a job gives. status: passed, failed (validation), or how its process ends without a result."""

    latency_ms: float = 1.0
    error_ratio: float = 1.0
    peak_mib: float = 1.0
    status: str = "passed"


Measure = Callable[[Mapping[str, str]], Figures]


@dataclass
class World:
    """What a search meets: a folder, what jobs give, and what was run, in order, as overrides by key.

    kill_after  so many jobs, the sweep is killed as the next one would start; jobs: that run at once
    """

    folder: Path
    measure: Measure
    kill_after: int | None = None
    jobs: int = 1
    rerun: str | None = None
    dry_run: bool = False
    newest_first: bool = False
    same: Callable[[dict[str, str]], dict[str, str]] = dict
    ran: list[dict[str, str]] = field(default_factory=list)
    console: Console = field(default_factory=lambda: Console(width=220, record=True, file=StringIO()))
    _sweeps: Any = field(default_factory=itertools.count)

    def check(self, settings: SearchConfig) -> Callable[[Sequence[str]], Job]:
        """What composes a job: its overrides stand in `model.call`, so that they make its identity."""
        sweep = SweepConfig(jobs=self.jobs, rerun=self.rerun, dry_run=self.dry_run)  # type: ignore[arg-type]

        def check(lines: Sequence[str]) -> Job:
            values = dict(line.lstrip("+").split("=", 1) for line in lines)
            if values.get("x") == "no" or (values.get("x"), values.get("y")) == ("a", "no"):
                raise UserError("x: there is no such value")
            base = base_config()
            model = replace(base.model, call=self.same(values))
            outputs = str(self.folder)
            config = replace(base, model=model, search=settings, sweep=sweep, outputs=outputs, job="fake")
            return Job(tuple(lines), config, None)

        return check

    def search(self, overrides: Sequence[str], settings: SearchConfig) -> Search:
        return search_of(overrides, self.check(settings), FakePool(self), None)  # type: ignore[arg-type]

    def run(self, overrides: Sequence[str], settings: SearchConfig) -> int:
        """The exit code of the sweep; `kill_after` raises `Killed`."""
        pool: Any = FakePool(self)
        search = search_of(overrides, self.check(settings), pool, None)
        return run_sweep(search, pool, self.claim, self.console)

    def claim(self) -> Path:
        folder = self.folder / "day" / f"{next(self._sweeps)}-sweep"
        folder.mkdir(parents=True)
        return folder

    @property
    def said(self) -> str:
        return self.console.export_text(clear=False)

    @property
    def newest(self) -> Path:
        return max((self.folder / "day").iterdir(), key=lambda folder: int(folder.name.split("-")[0]))


@lru_cache(maxsize=1)
def base_config() -> Config:
    overrides = ["tracking=off"]
    return configuration(compose(overrides), overrides)[0]


class FakePool:
    """Does what is started at once, in this process; it is told of when events are asked for."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._ended: list[Ended] = []

    def warm(self, modules: object) -> None:
        pass

    def call(self, function: str, argument: Any, timeout_seconds: float = 0.0) -> Ended:
        assert function == "pipeline.sweep.job:identify"
        return Ended(-1, 0, value=[_identity(config) for config in argument])

    def start(self, task: Task) -> None:
        if self.world.kill_after is not None and len(self.world.ran) >= self.world.kill_after:
            raise Killed
        record = task.argument.record
        values = dict(line.lstrip("+").split("=", 1) for line in record.overrides)
        self.world.ran.append(values)
        figures = self.world.measure(values)
        code = {"crashed": -signal.SIGSEGV, "passed": 0}.get(figures.status, 1)
        if figures.status in ("passed", "failed"):
            folder = Path(record.folder)
            write_results(result(figures), folder)
            (folder / "recipe.yaml").write_text(f"# {record.number}\n")
            records.write(replace(record, status=figures.status, reason="" if code == 0 else "wrong"))
        self._ended.append(Ended(task.number, code, seconds=1.0))

    def events(self, timeout_seconds: float | None) -> list[Ended]:
        """One event at a time, so that more than one job may run."""
        return [self._ended.pop(-1 if self.world.newest_first else 0)] if self._ended else []

    def stop(self, grace_seconds: float) -> None:
        pass


def _identity(config: Config) -> Identity:
    digest = config_hash(plain(asdict(config)))
    return Identity(digest, digest, "code", "cpu", {"torch": "2.14.1"})


def result(figures: Figures) -> RunRecord:
    """The record of a run of these figures."""
    median = figures.latency_ms
    latency = Summary(median, median, median, median, median)
    memory = MemoryUse(int(figures.peak_mib * 2**20), None, "by hand")
    about = (latency, latency, None, 1e3 / median, memory, CompileTime(1.0, 1.0), 1, (median,))
    engine = EngineResult("torchweld", *about)
    conditions = Conditions(0.5, 2, 2, 2400.0, None)
    benchmark = Benchmark(
        *("eager", (engine,), None, 1, 1.0, 1, "perf_counter", False, 0.95, conditions, conditions),
    )
    passed = figures.status == "passed"
    ours, eager = (Errors(error, error, error, 1.0) for error in (figures.error_ratio * 1e-7, 1e-7))
    check = OutputCheck(0, "output", "float32", (1,), ours, eager, 1e-6, 1e-6)
    validation = Validation("fp32", 1, 2.0, (check,), () if passed else ("wrong",))
    return RunRecord("fake", config={"model": {"name": "fake"}}, validation=validation, benchmark=benchmark)
