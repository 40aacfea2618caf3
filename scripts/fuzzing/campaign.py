"""Many cases, in worker processes forked from one parent that has imported everything.

Comes in: a `Plan`. Goes out: a `Summary`; findings are saved as they come. The parent computes nothing: it hands out
batches of case numbers, and reads what the workers say. A worker says which case it is about to call; when it dies, or
is silent for `SILENCE_SECONDS`, that case is a finding, and a new worker takes the rest of the batch. Workers are
replaced now and then, since loaded libraries and traces of torch's own stay in memory.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

import torch

from scripts.fuzzing.case import Case
from scripts.fuzzing.engines import Candidate, compile_cases
from scripts.fuzzing.findings import Finding, Summary, save
from scripts.fuzzing.generate import generate
from scripts.fuzzing.judge import Difference, judge
from scripts.fuzzing.shrink import shrink

SILENCE_SECONDS = 600.0
BATCHES_OF_A_WORKER = 12
# Of one signature, this many are shrunk; the others are counted.
SHRUNK_OF_A_KIND = 4


@dataclass(frozen=True)
class Plan:
    """What to run.

    graphs, minutes   the campaign ends with the first of them that is reached; None is no limit
    first             number of the first case
    shares            engine -> share of the graphs
    steps             most steps of a graph
    batch             graphs compiled together
    ignored           kinds of difference that are no finding
    shrink_seconds    for each finding
    """

    seed: int
    graphs: int | None
    minutes: float | None
    jobs: int = 1
    first: int = 0
    shares: tuple[tuple[str, float], ...] = (("aot", 1.0),)
    steps: int = 12
    batch: int = 40
    device: str = "cpu"
    ignored: frozenset[str] = frozenset()
    shrink_seconds: float = 60.0

    def case(self, number: int) -> Case:
        return generate(self.seed, number, self.steps, faults=self.device == "cpu")


def run(plan: Plan, folder: Path, tell: Callable[[str], None]) -> Summary:
    """Run `plan`; findings and the summary are saved in `folder`, progress is told in lines of text."""
    return _Campaign(plan, folder, tell).run()


def examine(cases: Sequence[Case], engine: str, plan: Plan, about: Callable[[int], None]) -> list[list[Difference]]:
    """Compile `cases` together and judge each; `about(position)` is called before each call."""
    candidates = compile_cases(cases, engine, plan.device)
    found = []
    for position, (case, candidate) in enumerate(zip(cases, candidates, strict=True)):
        about(position)
        found.append([each for each in _judged(case, candidate, plan.device) if each.kind not in plan.ignored])
    return found


def _judged(case: Case, candidate: Candidate, device: str) -> list[Difference]:
    if candidate.call is not None:
        return judge(case, candidate.call, device)
    error = candidate.error

    def refused(*_: Any) -> Any:
        raise error  # type: ignore[misc]

    found = judge(case, refused, device)
    return [Difference("compile", each.where, each.what) if each.kind == "error" else each for each in found]


# ---- a worker -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Batch:
    """Case numbers for one engine."""

    numbers: tuple[int, ...]
    engine: str


def _work(connection: Connection, parents: Connection, plan: Plan) -> None:
    """Examine batches until told to stop. Says ("about", number), ("found", Finding), ("done", None)."""
    parents.close()  # or this process would not notice that the parent has died
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        _examine_batches(connection, plan)


def _examine_batches(connection: Connection, plan: Plan) -> None:
    shrunk: Counter[str] = Counter()
    while (batch := connection.recv()) is not None:
        cases = [plan.case(number) for number in batch.numbers]
        found = examine(cases, batch.engine, plan, lambda at: connection.send(("about", batch.numbers[at])))
        for number, case, differences in zip(batch.numbers, cases, found, strict=True):
            if differences:
                finding = Finding(number, batch.engine, tuple(differences), case)
                connection.send(("about", number))
                shrunk[finding.kind] += 1
                if shrunk[finding.kind] <= SHRUNK_OF_A_KIND:
                    finding = _shrunk(finding, plan)
                connection.send(("found", finding))
        connection.send(("done", None))


def _shrunk(finding: Finding, plan: Plan) -> Finding:
    last = finding.differences

    def fails(case: Case) -> bool:
        nonlocal last
        found = examine([case], finding.engine, plan, lambda _: None)[0]
        if any(each.kind == finding.kind for each in found):
            last = tuple(found)
            return True
        return False

    smaller = shrink(finding.case, fails, plan.shrink_seconds)
    return Finding(finding.number, finding.engine, last, smaller)


# ---- the parent -----------------------------------------------------------------------------------------------------


@dataclass
class _Worker:
    process: Any
    connection: Connection
    batch: _Batch
    about: int | None = None
    heard: float = 0.0
    batches: int = 0


class _Campaign:
    def __init__(self, plan: Plan, folder: Path, tell: Callable[[str], None]) -> None:
        self.plan, self.folder, self.tell = plan, folder, tell
        self.summary = Summary(plan.seed)
        self.start = time.monotonic()
        self.context = multiprocessing.get_context("fork")
        self.batches = self._batches()
        self.left: list[_Batch] = []

    def run(self) -> Summary:
        workers = [worker for _ in range(self.plan.jobs) if (worker := self._worker())]
        try:
            while workers:
                ready = wait([worker.connection for worker in workers], timeout=5.0)
                workers = [kept for worker in workers if (kept := self._heard(worker, worker.connection in ready))]
        finally:
            for worker in workers:
                worker.process.kill()
            self.summary.seconds = time.monotonic() - self.start
            save(self.summary, self.folder)
        return self.summary

    def _batches(self) -> Iterator[_Batch]:
        plan, random = self.plan, Random(self.plan.seed)
        engines, weights = zip(*plan.shares)
        number, end = plan.first, plan.first + plan.graphs if plan.graphs is not None else None
        while end is None or number < end:
            if plan.minutes is not None and time.monotonic() - self.start > 60 * plan.minutes:
                return
            until = number + plan.batch if end is None else min(number + plan.batch, end)
            yield _Batch(tuple(range(number, until)), random.choices(engines, weights)[0])
            number = until

    def _worker(self) -> _Worker | None:
        """A new worker on the next batch; None where there is none."""
        batch = self._next()
        if batch is None:
            return None
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, ours, self.plan), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours, batch)
        self._hand(worker, batch)
        return worker

    def _next(self) -> _Batch | None:
        return self.left.pop() if self.left else next(self.batches, None)

    def _hand(self, worker: _Worker, batch: _Batch) -> None:
        worker.batch, worker.about, worker.heard = batch, None, time.monotonic()
        worker.batches += 1
        worker.connection.send(batch)

    def _heard(self, worker: _Worker, ready: bool) -> _Worker | None:
        """What becomes of `worker`: itself, a new one in its place, or None."""
        if not ready:
            return self._lost(worker, "hang") if time.monotonic() - worker.heard > SILENCE_SECONDS else worker
        try:
            word, value = worker.connection.recv()
        except EOFError:
            return self._lost(worker, "crash")
        worker.heard = time.monotonic()
        if word == "about":
            worker.about = value
        elif word == "found":
            self._found(value)
        else:
            return self._done(worker)
        return worker

    def _done(self, worker: _Worker) -> _Worker | None:
        self._count(worker.batch, len(worker.batch.numbers))
        if worker.batches < BATCHES_OF_A_WORKER:
            if (batch := self._next()) is not None:
                self._hand(worker, batch)
                return worker
        worker.connection.send(None)
        worker.process.join()
        return self._worker()

    def _lost(self, worker: _Worker, kind: str) -> _Worker | None:
        """The worker died or hangs: the case it was about is a finding, and what came after it is left to do."""
        worker.process.kill()
        worker.process.join()
        numbers = worker.batch.numbers
        at = numbers.index(worker.about) if worker.about is not None else None
        if at is None and len(numbers) > 1:
            # It died while compiling, with no case to blame: one by one it will show.
            self.left += [_Batch((number,), worker.batch.engine) for number in numbers]
            return self._worker()
        number = numbers[at or 0]
        case = self.plan.case(number)
        difference = Difference(kind, "", f"exit code {worker.process.exitcode}")
        self._found(Finding(number, worker.batch.engine, (difference,), case))
        self._count(worker.batch, (at or 0) + 1)
        if rest := numbers[(at or 0) + 1 :]:
            self.left.append(_Batch(rest, worker.batch.engine))
        return self._worker()

    def _found(self, finding: Finding) -> None:
        self.summary.findings.append(finding)
        save(self.summary, self.folder, [finding])
        first = finding.differences[0]
        self.tell(f"{finding.signature} (case {finding.number}, {finding.engine}) {first.where}: {first.what}")

    def _count(self, batch: _Batch, graphs: int) -> None:
        self.summary.graphs[batch.engine] += graphs
        self.summary.seconds = time.monotonic() - self.start
        save(self.summary, self.folder)
        self.tell(self.summary.text().splitlines()[0])
