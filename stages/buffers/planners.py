"""Where each allocation lies in the arena. Comes in: `Request`s. Goes out: an offset in bytes for each.

Two requests may overlap in memory where they do not overlap in time (dynamic storage allocation, NP-hard). All planners
place requests one after another, each into a gap between those placed before that are alive with it; they differ in
the order and in the choice of the gap. Sizes that are multiples of the alignment give offsets that are, too.

Greedy by size and greedy by breadth are from Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference" (2020), https://arxiv.org/abs/2001.03288.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Id = Hashable
Plan = dict[Id, int]
Fit = Literal["lowest", "tightest"]


@dataclass(frozen=True)
class Request:
    """An allocation of `bytes` bytes that is alive from `first` to `last`, both included."""

    id: Id
    first: int
    last: int
    bytes: int


@dataclass(frozen=True)
class Search:
    """The constants of the local search: it runs where the best greedy plan exceeds `margin` times the lower bound,
    and ends there, after `rounds` plans without gain, or after `work` pairs of requests looked at (some millions a
    second); `seed` makes it the same search every time."""

    margin: float = 1.02
    rounds: int = 300
    work: int = 10_000_000
    seed: int = 0


def lower_bound(requests: Sequence[Request]) -> int:
    """The largest sum of bytes alive at one time: no plan is smaller."""
    return max((size for _, size in _profile(requests)), default=0)


def plan_size(requests: Sequence[Request], plan: Plan) -> int:
    """Bytes of an arena that holds `plan`."""
    return max((plan[request.id] + request.bytes for request in requests), default=0)


def separate(requests: Sequence[Request]) -> Plan:
    """Every request in memory of its own."""
    plan: Plan = {}
    end = 0
    for request in requests:
        plan[request.id] = end
        end += request.bytes
    return plan


def greedy_by_size(requests: Sequence[Request]) -> Plan:
    """The largest first, each into the tightest gap."""
    return _place(_by_size(requests), Neighbours(requests), "tightest")


def greedy_by_breadth(requests: Sequence[Request]) -> Plan:
    """Time by time, those first at which most bytes are alive; of a time, the largest first, into the tightest gap."""
    return _place(_by_breadth(requests), Neighbours(requests), "tightest")


def best(requests: Sequence[Request], search: Search = Search()) -> Plan:
    """The smallest plan of the orders by size, by breadth and by area (bytes x time) with both choices of the gap;
    where that is not near the lower bound, a local search over orders goes on from it."""
    neighbours = Neighbours(requests)
    orders = [_by_size(requests), _by_breadth(requests), _by_area(requests)]
    plans = [(order, _place(order, neighbours, fit)) for order in orders for fit in FITS]
    order, plan = min(plans, key=lambda pair: plan_size(requests, pair[1]))
    return _improve(order, plan, neighbours, search)


STRATEGIES: dict[str, Callable[[Sequence[Request]], Plan]] = {
    "none": separate,
    "inplace": separate,
    "greedy_by_size": greedy_by_size,
    "greedy_by_breadth": greedy_by_breadth,
    "best": best,
}
FITS: tuple[Fit, ...] = ("lowest", "tightest")


# ---- orders -------------------------------------------------------------------------------


def _by_size(requests: Iterable[Request]) -> list[Request]:
    return sorted(requests, key=lambda request: (-request.bytes, request.first - request.last))


def _by_area(requests: Iterable[Request]) -> list[Request]:
    return sorted(requests, key=lambda request: -request.bytes * (request.last - request.first + 1))


def _by_breadth(requests: Sequence[Request]) -> list[Request]:
    """Each request at the broadest time of its life, broadest times first."""
    profile = _profile(requests)
    times = [time for time, _ in profile]

    def breadth(request: Request) -> int:
        # The profile changes only where a life begins or has ended, so it has an entry for request.first.
        begin, end = bisect.bisect_left(times, request.first), bisect.bisect_right(times, request.last)
        return max(size for _, size in profile[begin:end])

    return sorted(requests, key=lambda request: (-breadth(request), -request.bytes))


def _profile(requests: Iterable[Request]) -> list[tuple[int, int]]:
    """(time, bytes alive from it on) at each time at which that changes, in order."""
    change: dict[int, int] = {}
    for request in requests:
        change[request.first] = change.get(request.first, 0) + request.bytes
        change[request.last + 1] = change.get(request.last + 1, 0) - request.bytes
    profile, alive = [], 0
    for time in sorted(change):
        alive += change[time]
        profile.append((time, alive))
    return profile


# ---- placing ------------------------------------------------------------------------------


class Neighbours:
    """For each request the others that are alive at the same time as it; found by one sweep over time."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.of: dict[Id, list[Request]] = {request.id: [] for request in requests}
        if len(self.of) != len(requests):
            raise ValueError("two requests have one id")
        alive: list[Request] = []
        for request in sorted(requests, key=lambda request: request.first):
            alive = [other for other in alive if other.last >= request.first]
            for other in alive:
                self.of[other.id].append(request)
                self.of[request.id].append(other)
            alive.append(request)

    @property
    def pairs(self) -> int:
        return sum(map(len, self.of.values()))


def _place(order: Iterable[Request], neighbours: Neighbours, fit: Fit) -> Plan:
    """Offsets of the requests, placed in this order."""
    plan: Plan = {}
    for request in order:
        taken = sorted((plan[n.id], plan[n.id] + n.bytes) for n in neighbours.of[request.id] if n.id in plan)
        plan[request.id] = _gap(taken, request.bytes, fit)
    return plan


def _gap(taken: Iterable[tuple[int, int]], size: int, fit: Fit) -> int:
    """The offset of a gap of `size` bytes between the (begin, end) of `taken`, which are sorted; else their end."""
    end = 0
    found: tuple[int, int] | None = None
    for begin, stop in taken:
        room = begin - end
        if room >= size and (found is None or room < found[0]):
            found = (room, end)
            if fit == "lowest":
                break
        end = max(end, stop)
    return end if found is None else found[1]


# ---- local search -------------------------------------------------------------------------


def _improve(order: list[Request], plan: Plan, neighbours: Neighbours, search: Search) -> Plan:
    """A plan no larger than `plan`, found by moving requests that reach its top forward in the order."""
    requests = list(order)
    goal = lower_bound(requests) * search.margin
    size = plan_size(requests, plan)
    if size <= goal:
        return plan
    chance = random.Random(search.seed)
    best_plan, best_size, idle = plan, size, 0
    for _ in range(search.work // max(1, neighbours.pairs)):
        top = [place for place, request in enumerate(order) if plan[request.id] + request.bytes == size]
        candidate = list(order)
        moved = candidate.pop(chance.choice(top))
        # Requests alive with it pushed it to the top: it goes before one of them.
        around = {request.id for request in neighbours.of[moved.id]}
        places = [place for place, request in enumerate(candidate) if request.id in around]
        candidate.insert(chance.choice(places) if places else 0, moved)
        new_plan = _place(candidate, neighbours, "lowest")
        new_size = plan_size(requests, new_plan)
        idle += 1
        if new_size <= size:
            order, plan, size = candidate, new_plan, new_size
        if new_size < best_size:
            best_plan, best_size, idle = new_plan, new_size, 0
        if best_size <= goal or idle > search.rounds:
            break
    return best_plan
