"""The order of steps. Comes in: what each reads, writes and must follow. Goes out: an order with a low memory peak.

Two orders are tried, the graph's own and a greedy one that always takes the ready step after which the least memory is
in use; the one with the lower peak wins, the graph's own on a tie. Both depend on nothing but the graph.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stages.ir.kernel import IRError


@dataclass(frozen=True)
class Task:
    """A step to place.

    reads, writes   storages, by any hashable name; `writes` gives the bytes of each
    after           numbers of tasks that must run before for another reason than a read
    kept            storages written here that stay in use to the end (the program returns them)
    """

    reads: frozenset[Any]
    writes: Mapping[Any, int]
    after: tuple[int, ...] = ()
    kept: frozenset[Any] = field(default_factory=frozenset)


class _Walk:
    """Places tasks one by one and knows which are ready and what memory is in use."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.writer = {name: number for number, task in enumerate(tasks) for name in task.writes}
        self.readers = Counter(name for task in tasks for name in task.reads if name in self.writer)
        self.followers: list[set[int]] = [set() for _ in tasks]
        for number, task in enumerate(tasks):
            for before in (*task.after, *(self.writer[name] for name in task.reads if name in self.writer)):
                if before != number:
                    self.followers[before].add(number)
        self.missing = Counter(follower for followers in self.followers for follower in followers)
        self.in_use = self.peak = 0

    def growth(self, number: int) -> int:
        """Bytes by which memory in use grows over task `number`."""
        task = self.tasks[number]
        new = sum(size for name, size in task.writes.items() if self.readers[name] or name in task.kept)
        freed = sum(self._size(name) for name in task.reads if self.readers[name] == 1 and not self._kept(name))
        return new - freed

    def place(self, number: int) -> list[int]:
        """Run task `number`; the tasks that became ready."""
        task = self.tasks[number]
        self.peak = max(self.peak, self.in_use + sum(task.writes.values()))
        self.in_use += self.growth(number)
        for name in task.reads:
            self.readers[name] -= 1
        ready = []
        for follower in self.followers[number]:
            self.missing[follower] -= 1
            if self.missing[follower] == 0:
                ready.append(follower)
        return ready

    def _size(self, name: Hashable) -> int:
        return self.tasks[self.writer[name]].writes[name]

    def _kept(self, name: Hashable) -> bool:
        return name in self.tasks[self.writer[name]].kept


def order(tasks: Sequence[Task]) -> list[int]:
    """The numbers of `tasks` in the order to run them. Raises `IRError` if they wait for each other in a circle."""
    candidates = [_walk(tasks, greedy) for greedy in (False, True)]
    return min(candidates, key=lambda found: found[0])[1]


def _walk(tasks: Sequence[Task], greedy: bool) -> tuple[int, list[int]]:
    """(peak bytes, order): by number among the ready ones, or, `greedy`, by memory growth first."""
    walk = _Walk(tasks)
    waiting = [number for number in range(len(tasks)) if not walk.missing[number]]
    placed: list[int] = []
    if not greedy:
        heapq.heapify(waiting)
    while waiting:
        if greedy:
            # Growth changes as readers go, so the ready tasks are weighed anew; there are few of them.
            number = min(waiting, key=lambda task: (walk.growth(task), task))
            waiting.remove(number)
            waiting.extend(walk.place(number))
        else:
            number = heapq.heappop(waiting)
            for ready in walk.place(number):
                heapq.heappush(waiting, ready)
        placed.append(number)
    if len(placed) != len(tasks):
        raise IRError(f"fusion: steps {sorted(set(range(len(tasks))) - set(placed))[:8]} wait for each other")
    return walk.peak, placed
