"""Many cases, in worker processes (`pipeline.pool`).

Comes in: a `Plan`. Goes out: a `Summary`; findings are saved as they come. The parent computes nothing: it hands out
batches of case numbers, and reads what the workers say. A worker says which case it is about to call; when it dies, or
is silent for `SILENCE_SECONDS`, that case is a finding, and a new worker takes the rest of the batch. A worker that has
lost its GPU says whose fault it was and ends; where it was eager's, that is no finding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from pipeline.pool.client import Pool
from pipeline.pool.crew import Crew, Done, Event, Share
from pipeline.pool.task import Ended
from scripts.fuzzing.case import Case
from scripts.fuzzing.engines import Candidate, compile_cases
from scripts.fuzzing.findings import Finding, Summary, save
from scripts.fuzzing.generate import generate
from scripts.fuzzing.judge import DeviceLost, Difference, EagerAsserts, judge
from scripts.fuzzing.shrink import shrink

# What a worker needs, and what its first case would import.
WARM = (
    "scripts.fuzzing.campaign",
    "torch._inductor.scheduler",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.repro.after_aot",
    "pipeline.configure",
    "stages.codegen.cpp",
)
WORK = "scripts.fuzzing.campaign:work"
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


def examine(cases: Sequence[Case], engine: str, plan: Plan, about: Callable[[int], None]) -> Iterator[list[Difference]]:
    """Compile `cases` together and judge one after the other; `about(position)` is called before each call.

    Raises `EagerAsserts` at a case on which eager loses the device.
    """
    candidates = compile_cases(cases, engine, plan.device)
    for position, (case, candidate) in enumerate(zip(cases, candidates, strict=True)):
        about(position)
        yield [each for each in _judged(case, candidate, plan.device) if each.kind not in plan.ignored]


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


@dataclass(frozen=True)
class _Order:
    """What all workers are told. until: seconds of the monotonic clock after which no batch is begun."""

    plan: Plan
    until: float


def work(share: Share, tell: Callable[[object], None]) -> None:
    """Examine batches of `_Batch`. Tells the number of the case it is at, and each `Finding`."""
    torch.set_num_threads(1)
    shrunk: Counter[str] = Counter()
    for batch in share.batches:
        if time.monotonic() > share.common.until:
            return
        _examine(batch, share.common.plan, shrunk, tell)
        tell(Done())


def _examine(batch: _Batch, plan: Plan, shrunk: Counter[str], tell: Callable[[object], None]) -> None:
    """`shrunk`: how many findings of each kind this worker has shrunk. Raises `DeviceLost`, with the finding told."""
    cases = [plan.case(number) for number in batch.numbers]
    found = examine(cases, batch.engine, plan, lambda at: tell(batch.numbers[at]))
    for number, case, differences in zip(batch.numbers, cases, found, strict=True):
        if not differences:
            continue
        finding = Finding(number, batch.engine, tuple(differences), case, plan.device)
        if finding.kind == "crash":
            tell(finding)
            raise DeviceLost(differences[0].what)
        shrunk[finding.kind] += 1
        if shrunk[finding.kind] > SHRUNK_OF_A_KIND:
            tell(finding)
            continue
        try:
            smaller = _shrunk(finding, plan)
        except DeviceLost as lost:
            tell(finding)
            raise DeviceLost(f"while it was shrunk: {lost}") from lost
        tell(smaller)


def _shrunk(finding: Finding, plan: Plan) -> Finding:
    last = finding.differences

    def fails(case: Case) -> bool:
        nonlocal last
        (found,) = examine([case], finding.engine, plan, lambda _: None)
        kinds = {each.kind for each in found}
        if "crash" in kinds:
            raise DeviceLost(found[0].what)
        if finding.kind in kinds:
            last = tuple(found)
        return finding.kind in kinds

    smaller = shrink(finding.case, fails, plan.shrink_seconds, faults=plan.device == "cpu")
    return replace(finding, differences=last, case=smaller)


# ---- the parent -----------------------------------------------------------------------------------------------------


class _Campaign:
    def __init__(self, plan: Plan, folder: Path, tell: Callable[[str], None]) -> None:
        self.plan, self.folder, self.tell = plan, folder, tell
        self.summary = Summary(plan.seed)
        self.start = time.monotonic()
        self.until = float("inf") if plan.minutes is None else self.start + 60 * plan.minutes

    def run(self) -> Summary:
        plan = self.plan
        a_worker = BATCHES_OF_A_WORKER
        if plan.graphs is not None:
            a_worker = min(a_worker, -(-plan.graphs // (plan.batch * plan.jobs)))
        try:
            with Pool(WARM) as pool:
                order = _Order(plan, self.until)
                crew = Crew(pool, WORK, order, self._batches(), plan.jobs, a_worker, SILENCE_SECONDS)
                for event in crew:
                    if event.ended is not None:
                        crew.again(self._lost(event))
                    elif isinstance(event.told, Finding):
                        self._found(event.told)
                    elif isinstance(event.told, Done):
                        self._count(event.batch, len(event.batch.numbers))
        finally:
            self.summary.seconds = time.monotonic() - self.start
            save(self.summary, self.folder)
        return self.summary

    def _batches(self) -> Iterator[_Batch]:
        plan, random = self.plan, Random(self.plan.seed)
        engines, weights = zip(*plan.shares)
        number, end = plan.first, plan.first + plan.graphs if plan.graphs is not None else None
        while (end is None or number < end) and time.monotonic() <= self.until:
            until = number + plan.batch if end is None else min(number + plan.batch, end)
            yield _Batch(tuple(range(number, until)), random.choices(engines, weights)[0])
            number = until

    def _lost(self, event: Event) -> list[_Batch]:
        """The worker died or hung: the case it was about is a finding. What is left to do of its batch."""
        batch, ended = event.batch, event.ended
        assert ended is not None
        about = event.last.number if isinstance(event.last, Finding) else event.last
        if about is None and len(batch.numbers) > 1:
            # It died while compiling, with no case to blame: one by one it will show.
            return [_Batch((number,), batch.engine) for number in batch.numbers]
        at = batch.numbers.index(about) if about is not None else 0
        why = ended.raised.partition(":")[0]
        if why == EagerAsserts.__name__:
            self.summary.asserted += 1
        elif why != DeviceLost.__name__:  # else it has told what it found
            self._died(batch.numbers[at], batch.engine, ended)
        self._count(batch, at + 1)
        rest = batch.numbers[at + 1 :]
        return [_Batch(rest, batch.engine)] if rest else []

    def _died(self, number: int, engine: str, ended: Ended) -> None:
        kind = "hang" if ended.cause == "silence" else "crash"
        difference = Difference(kind, "", f"exit code {ended.code} {ended.raised}".rstrip())
        self._found(Finding(number, engine, (difference,), self.plan.case(number), self.plan.device))

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
