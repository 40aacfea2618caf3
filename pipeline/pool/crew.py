"""A list of batches, worked off by processes that each take several: `crew` deals them out and says what comes of them.

A process's first batch costs it what cannot be imported beforehand (composing a config, the caches of torch), so it
takes more than one; and not all, since libraries that it loads and traces that torch keeps stay in memory. When it
dies, the batch it was at is lost, for the caller to judge, and the batches after it go to other processes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pipeline.pool.client import Pool, PoolDied
from pipeline.pool.task import Ended, Task, Told


@dataclass(frozen=True)
class Share:
    """The argument of a worker's function. common: what is the same for all; batches: to be done in order.

    After each batch the function tells `Done()`. It may return before the last; that leaves the others undone.
    """

    common: Any
    batches: tuple[Any, ...]


@dataclass(frozen=True)
class Done:
    """A worker has done a batch."""


@dataclass
class _Worker:
    batches: list[Any]
    last: Any = None


@dataclass(frozen=True)
class Event:
    """What happened to `batch`.

    told    what its worker said; `Done()` where the batch is done
    last    what it had said before, of this batch
    ended   set where the worker died at it, and `told` then is None
    """

    batch: Any
    told: Any
    last: Any = None
    ended: Ended | None = None


@dataclass
class Crew:
    """Iterate over it once; it ends when no batch is left.

    function          `module:name`, called with a `Share`
    jobs              processes at a time
    a_worker          most batches that one takes
    silence_seconds   after which a worker that tells nothing is killed, with cause "silence"
    """

    pool: Pool
    function: str
    common: Any
    batches: Iterator[Any]
    jobs: int
    a_worker: int
    silence_seconds: float
    _again: list[Any] = field(default_factory=list)
    _running: dict[int, _Worker] = field(default_factory=dict)
    _started: int = 0

    def again(self, batches: Sequence[Any]) -> None:
        """Have `batches` done next, each by a worker of its own (they may be such as kill one)."""
        self._again += reversed(batches)

    def __iter__(self) -> Iterator[Event]:
        while True:
            events: Iterable[Told | Ended]
            try:
                while len(self._running) < self.jobs and (batches := self._take()):
                    self._start(batches)
                if not self._running:
                    return
                events = self.pool.events(None)
            except PoolDied as death:
                self.pool.restart()
                events = [Ended(number, -signal.SIGKILL, raised=str(death)) for number in self._running]
            for event in events:
                yield from self._heard(event)

    def _take(self) -> list[Any]:
        return [self._again.pop()] if self._again else list(islice(self.batches, self.a_worker))

    def _start(self, batches: list[Any]) -> None:
        self._started += 1
        self._running[self._started] = _Worker(batches)
        share = Share(self.common, tuple(batches))
        self.pool.start(Task(self._started, self.function, share, silence_seconds=self.silence_seconds))

    def _heard(self, event: Told | Ended) -> Iterator[Event]:
        worker = self._running[event.number]
        if isinstance(event, Ended):
            del self._running[event.number]
            if worker.batches and (event.code or event.cause):
                batch, *rest = worker.batches
                self.again(rest)
                yield Event(batch, None, worker.last, event)
        elif isinstance(event.value, Done):
            yield Event(worker.batches.pop(0), event.value, worker.last)
            worker.last = None
        else:
            yield Event(worker.batches[0], event.value, worker.last)
            worker.last = event.value
