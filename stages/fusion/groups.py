"""Units become groups, one kernel each, by greedy merging. Comes in: a `Partition` into single units; it is merged.

Four passes: creation operations are computed where they are used; producers and consumers are merged, those first
whose fusion saves the most bytes; siblings too; and stored values that are cheaper to compute again than to write and
read are computed in each group that wants them. Every step obeys the rules of the config, and `legality.legal`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import fx

from stages.fusion.config import Rule
from stages.fusion.kernels import Built, Refusal
from stages.fusion.legality import legal, within_limits
from stages.fusion.lowering import Kind
from stages.fusion.partition import Group, Partition
from stages.fusion.rules import find_rule
from stages.ir.program import Decision


def group(partition: Partition) -> list[Decision]:
    """Merge the groups of `partition`; the fusions made and, for neighbours left apart, the reasons."""
    merging = _Merging(partition)
    merging.compute_again(creations=True)
    merging.merge_all(siblings=False)
    merging.merge_all(siblings=True)
    merging.compute_again(creations=False)
    return [*merging.decisions, *merging.refusals()]


@dataclass
class _Merging:
    """The passes. A candidate in the heap is void once one of its two groups has changed."""

    partition: Partition
    decisions: list[Decision] = field(default_factory=list)

    # ---- producers, consumers, siblings ----

    def merge_all(self, siblings: bool) -> None:
        """Merge neighbours until no rule applies; `siblings`: also groups that only read the same inputs."""
        groups = self.partition.groups
        heap: list[tuple[int, int, int]] = []
        for key in sorted(groups):
            self._push(heap, key, siblings)
        seen: dict[tuple[int, int], tuple[Group, Group]] = {}
        while heap:
            _, first, second = heapq.heappop(heap)
            if first not in groups or second not in groups:
                continue
            pair = (groups[first], groups[second])
            if seen.get((first, second)) == pair:
                continue
            seen[first, second] = pair
            if not isinstance(self._try(first, second, siblings), Refusal):
                self._push(heap, min(first, second), siblings)

    def _push(self, heap: list[tuple[int, int, int]], key: int, siblings: bool) -> None:
        for first, second in self._neighbours(key, siblings):
            heapq.heappush(heap, (-self._gain(first, second), first, second))

    def _neighbours(self, key: int, siblings: bool) -> Iterator[tuple[int, int]]:
        """Pairs of group `key` and another: (producer, consumer), or siblings in the graph's order."""
        partition, built = self.partition, self.partition.groups[key].built
        found: dict[tuple[int, int], None] = {}
        for value in built.inputs:
            maker = partition.units.maker.get(value)
            if maker is not None and partition.home[maker] in partition.groups:
                found[partition.home[maker], key] = None
        for value in built.outputs:
            found.update(((key, reader), None) for reader in sorted(partition.readers(value) & partition.groups.keys()))
        if siblings:
            # Only the nearest reader on either side: with many readers, merging goes along the row of them.
            for value in built.inputs:
                readers = sorted((partition.readers(value) & partition.groups.keys()) | {key})
                at = readers.index(key)
                near = readers[max(at - 1, 0) : at] + readers[at + 1 : at + 2]
                pairs = [(min(key, other), max(key, other)) for other in near]
                found.update((pair, None) for pair in pairs if pair[::-1] not in found)
        yield from found

    def _gain(self, first: int, second: int) -> int:
        """Bytes that fusing two groups saves, about: whole storages, before there is a kernel to count from."""
        partition = self.partition
        one, two = partition.groups[first].built, partition.groups[second].built
        saved = sum(partition.memory.nbytes(value) for value in set(one.inputs) & set(two.inputs))
        for producer, consumer, reader in ((one, two, second), (two, one, first)):
            for value in set(producer.outputs) & set(consumer.inputs):
                alone = partition.readers(value) == {reader} and value not in partition.units.returned
                saved += partition.memory.nbytes(value) * (2 if alone else 1)
        return saved

    def _try(self, first: int, second: int, siblings: bool) -> Refusal | None:
        """Merge two groups if a rule and the law allow it and it saves bytes; else why not."""
        partition = self.partition
        rule = self._rule(first, second, siblings)
        if isinstance(rule, Refusal):
            return rule
        if (refusal := legal(partition, first, second)) is not None:
            return refusal
        built = partition.joined(first, second)
        assert isinstance(built, Built)
        apart = partition.groups[first].built.traffic + partition.groups[second].built.traffic
        saved = apart - built.traffic
        if saved <= 0 or saved < rule.min_share * apart:
            return Refusal(f"it would save {max(saved, 0)} of {apart} bytes; rule '{rule.name}' wants more")
        self._record(first, second, rule, f"{built.positions} positions in one loop", saved)
        partition.merge(first, second, built)
        return None

    def _rule(self, first: int, second: int, siblings: bool) -> Rule | Refusal:
        partition = self.partition
        one, two = partition.groups[first], partition.groups[second]
        kinds = partition.kind(one.units, one.built), partition.kind(two.units, two.built)
        related = self._link(first, second) is not None
        return find_rule(
            partition.config.rules, one.built, two.built, kinds, siblings=siblings and not related, recomputed=False
        )

    # ---- computing again ----

    def compute_again(self, creations: bool) -> None:
        """Compute stored values in the groups that read them, where rules allow it and it saves bytes.

        creations: only operations that read nothing; otherwise all values.
        """
        for unit in self.partition.units.units:
            if creations and unit.kind is not Kind.CREATION:
                continue
            for value in unit.values:
                home = self.partition.home[unit.index]
                if home in self.partition.groups and value in self.partition.groups[home].built.outputs:
                    self._spread(value, home)

    def _spread(self, value: fx.Node, home: int) -> None:
        partition = self.partition
        holder = partition.groups[home]
        cone = partition.cone([value], holder.units)
        producer = partition.build(cone, [value])
        if isinstance(producer, Refusal):
            return
        readers = partition.readers(value)
        takers = {key: self._taken(key, cone, producer) for key in sorted(readers & partition.groups.keys())}
        agreed = {key: found for key, found in takers.items() if not isinstance(found, Refusal)}
        gains = {key: partition.groups[key].built.traffic - found[0].traffic for key, found in agreed.items()}
        unstored = len(agreed) == len(readers) and value not in partition.units.returned
        if not (unstored and sum(gains.values()) + partition.memory.nbytes(value) > 0):
            # It stays in memory, so each reader computes it only if that alone saves bytes.
            agreed = {key: found for key, found in agreed.items() if gains[key] > 0}
        for key, (built, rule) in agreed.items():
            maker = partition.units[partition.units.maker[value]]
            saved = gains[key] + partition.memory.nbytes(value) // len(agreed) * unstored
            reason = f"computed in place, {producer.work} operations a position"
            self._record(maker.index, key, rule, reason, saved, value)
            partition.extend(key, cone, built)
        if agreed:
            partition.prune(home)

    def _taken(self, key: int, cone: frozenset[int], producer: Built) -> tuple[Built, Rule] | Refusal:
        """The kernel of group `key` if it computes `cone` itself, and the rule that lets it."""
        partition = self.partition
        taker = partition.groups[key]
        kinds = partition.kind(cone, producer), partition.kind(taker.units, taker.built)
        rule = find_rule(partition.config.rules, producer, taker.built, kinds, siblings=False, recomputed=True)
        if isinstance(rule, Refusal):
            return rule
        units = taker.units | cone
        built = partition.build(units, partition.outputs(units, (key,)))
        if isinstance(built, Refusal):
            return built
        return within_limits(partition.config, units, built) or (built, rule)

    # ---- what explain says ----

    def _link(self, first: int, second: int) -> fx.Node | None:
        """A value that `first` makes and `second` reads, the largest."""
        groups = self.partition.groups
        shared = set(groups[first].built.outputs) & set(groups[second].built.inputs)
        return max(sorted(shared), key=self.partition.memory.nbytes, default=None)

    def _record(
        self, first: int, second: int, rule: Rule, reason: str, saved: int, value: fx.Node | None = None
    ) -> None:
        units = self.partition.units
        value = value or self._link(first, second)
        producer = units[first] if value is None else units[units.maker[value]]
        consumer = self._reader_in(second, value)
        self.decisions.append(
            Decision(producer.label, units[consumer].label, True, rule.name, reason, units[consumer].origin, saved)
        )

    def _reader_in(self, key: int, value: fx.Node | None) -> int:
        """The first unit of group `key` that reads `value`."""
        units = self.partition.groups[key].units
        readers = [] if value is None else self.partition.units.users.get(value, [])
        return next((index for index in readers if index in units), min(units))

    def refusals(self) -> list[Decision]:
        """Why each producer and consumer that are left as two kernels are not one; a pair of groups once."""
        partition = self.partition
        found = []
        for key in sorted(partition.groups):
            for value in partition.groups[key].built.outputs:
                for reader in sorted(partition.readers(value) & partition.groups.keys()):
                    if self._link(key, reader) is value:
                        refusal = self._why_not(key, reader)
                        producer = partition.units[partition.units.maker[value]]
                        consumer = partition.units[self._reader_in(reader, value)]
                        found.append(
                            Decision(producer.label, consumer.label, False, "", refusal.reason, consumer.origin)
                        )
        return found

    def _why_not(self, first: int, second: int) -> Refusal:
        rule = self._rule(first, second, siblings=False)
        if isinstance(rule, Refusal):
            return rule
        return legal(self.partition, first, second) or Refusal(f"rule '{rule.name}' wants more bytes saved")
