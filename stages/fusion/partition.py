"""The groups of a graph at one moment of the merging: who runs what, who reads what, and what lies between.

Nothing may lie between two merged groups: a path that leaves the one and enters the other would make the fused kernel
wait for itself. For that each group knows, as bits of one number, all units that run before it; with every merge the
groups behind are brought up to date, so a check is one `&`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from torch import fx

from stages.fusion.config import FusionConfig
from stages.fusion.kernels import Built, Kernels, Refusal
from stages.fusion.lowering import Kind
from stages.fusion.units import Unit, Units
from stages.ir.schedule import Schedule


@dataclass(frozen=True)
class Group:
    """What becomes one kernel: its units, and the kernel. A unit may run in several groups; `built` is over all.

    schedule   of a kernel that a measurement chose (`templates`); else None
    """

    units: frozenset[int]
    built: Built
    schedule: Schedule | None = None


class Partition:
    """The groups at this moment, and how they stand to each other. A group's number is one of its units'."""

    def __init__(self, units: Units, kernels: Kernels, config: FusionConfig) -> None:
        self.units, self.kernels, self.config = units, kernels, config
        self.memory = units.memory
        self.groups: dict[int, Group] = {}
        self.home = list(range(len(units)))
        self.runs: list[set[int]] = [{index} for index in range(len(units))]
        self.before: dict[int, int] = {}
        self.mask = {index: 1 << index for index in range(len(units))}
        self.follow = [0] * len(units)
        for unit in units.units:
            self.before[unit.index] = 0
            for index in unit.after:
                self.before[unit.index] |= self.before[index] | 1 << index
                self.follow[index] |= 1 << unit.index
            if unit.is_kernel:
                built = kernels.build([unit], sorted(unit.values))
                if isinstance(built, Built):
                    self.groups[unit.index] = Group(frozenset([unit.index]), built)
                else:
                    units.units[unit.index] = replace(unit, kind=Kind.EXTERN, reason=built.reason)

    # ---- who needs what ----

    def readers(self, value: fx.Node) -> set[int]:
        """The groups and externs that read `value` from memory: those that do not compute it themselves."""
        maker = self.units.maker.get(value)
        inside = set() if maker is None else self.runs[maker]
        return {key for user in self.units.users.get(value, ()) for key in self.runs[user]} - inside

    def outputs(self, units: Iterable[int], own: Collection[int]) -> list[fx.Node]:
        """The values that a group of `units`, made of the groups `own`, has to store."""
        return [
            value
            for index in sorted(units)
            if self.home[index] in own
            for value in sorted(self.units[index].values)
            if value in self.units.returned or self.readers(value) - set(own)
        ]

    def cone(self, values: Iterable[fx.Node], inside: frozenset[int]) -> frozenset[int]:
        """The units among `inside` on which `values` depend without leaving `inside`."""
        found: set[int] = set()
        waiting = [self.units.maker[value] for value in values]
        while waiting:
            index = waiting.pop()
            if index in inside and index not in found:
                found.add(index)
                reads = self.units[index].reads
                waiting.extend(self.units.maker[value] for value in reads if value in self.units.maker)
        return frozenset(found)

    def kind(self, units: Iterable[int], built: Built) -> str:
        """One of `config.KINDS`: what a group of `units` with this kernel is to the rules."""
        if all(self.units[index].kind is Kind.CREATION for index in units):
            return "creation"
        return "reduction" if built.reduces else "pointwise"

    def build(self, units: Iterable[int], outputs: Sequence[fx.Node]) -> Built | Refusal:
        """One kernel of `units` that stores `outputs`."""
        return self.kernels.build([self.units[index] for index in units], outputs)

    # ---- merging ----

    def between(self, *keys: int) -> Unit | None:
        """A unit outside groups `keys` that runs after one of them and before another; None if there is none."""
        outside = ~0
        for key in keys:
            outside &= ~self.mask[key]
        for start, end in permutations(keys, 2):
            if found := self._successors(start) & self.before[end] & outside:
                return self.units[(found & -found).bit_length() - 1]
        return None

    def _successors(self, key: int) -> int:
        found = 0
        for index in self.groups[key].units:
            if self.home[index] == key:
                found |= self.follow[index]
        return found

    def joined(self, first: int, second: int) -> Built | Refusal:
        """The one kernel of two groups."""
        units = self.groups[first].units | self.groups[second].units
        return self.build(units, self.outputs(units, (first, second)))

    def merge(self, first: int, second: int, built: Built) -> int:
        """Make one group of two; its number."""
        key, gone = min(first, second), max(first, second)
        units = self.groups[first].units | self.groups[second].units
        self.groups[key] = Group(units, built)
        del self.groups[gone]
        self.mask[key] |= self.mask.pop(gone)
        before = (self.before[key] | self.before.pop(gone)) & ~self.mask[key]
        self.before[key] = before
        for other, mask in self.before.items():
            if mask & self.mask[key]:
                self.before[other] = mask | before | self.mask[key]
        for index in units:
            self.runs[index] = (self.runs[index] - {gone}) | {key}
            if self.home[index] == gone:
                self.home[index] = key
        return key

    # ---- operations of the library that may be kernels ----

    def admit(self, index: int, built: Built) -> None:
        """Make a group of unit `index`, which torch ran until now."""
        self.groups[index] = Group(frozenset([index]), built)
        self.units.units[index] = replace(self.units[index], kind=Kind.REDUCTION)

    def dismiss(self, index: int, reason: str) -> None:
        """Leave unit `index`, a group of its own, to torch after all."""
        del self.groups[index]
        self.units.units[index] = replace(self.units[index], kind=Kind.EXTERN, reason=reason)

    # ---- computing again ----

    def extend(self, key: int, units: frozenset[int], built: Built) -> None:
        """Let group `key` compute `units` too, which are at home elsewhere; `built` is its kernel then."""
        self.groups[key] = Group(self.groups[key].units | units, built)
        for index in units:
            self.runs[index].add(key)

    def prune(self, key: int) -> None:
        """Drop what nobody needs of group `key` any more, and of the groups that it read only for that."""
        waiting = [key]
        while waiting:
            key = waiting.pop()
            if key not in self.groups:
                continue
            group = self.groups[key]
            stored = self.outputs(group.units, (key,))
            if stored == list(group.built.outputs):
                continue
            kept = self.cone(stored, group.units)
            if kept:
                built = self.build(kept, stored)
                assert isinstance(built, Built), "a part of a kernel is one"
                self.groups[key] = Group(kept, built)
            else:
                del self.groups[key]
            for index in group.units - kept:
                self.runs[index].discard(key)
            waiting.extend(
                sorted({self.home[self.units.maker[v]] for v in group.built.inputs if v in self.units.maker})
            )
