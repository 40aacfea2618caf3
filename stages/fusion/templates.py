"""Operations of the library that become kernels, with the pointwise groups around them, where that measures faster.

Comes in: a `Partition` whose groups are settled, and a `Judge` that times contests. Goes out: the partition with the
kernels that won as groups, and a decision for each contest. For each operation the ways are tried from the one that
takes most along to the operation alone; the first that wins is taken. All contests of one size are judged at once,
since their kernels compile side by side. Without a judge nothing is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stages.fusion.config import FusionConfig, Template
from stages.fusion.cost import step_traffic
from stages.fusion.kernels import Built, Refusal
from stages.fusion.legality import within_limits
from stages.fusion.partition import Partition
from stages.ir.contest import Contest, Judge, Verdict
from stages.ir.kernel import Kernel
from stages.ir.matmul import matmul_of, why_no_matmul
from stages.ir.program import Decision

MakeContest = Callable[[tuple[int, ...], Built], Contest]


@dataclass(frozen=True)
class Way:
    """One way to make a kernel of an operation: the groups it is made of, in the order to run them, and the kernel."""

    index: int
    parts: tuple[int, ...]
    built: Built
    contest: Contest


def use_templates(partition: Partition, device: str, make: MakeContest, judge: Judge) -> list[Decision]:
    """Turn operations of the library into kernels where `judge` says so; what was decided."""
    return _Choosing(partition, device, make, judge).decisions()


class _Choosing:
    def __init__(self, partition: Partition, device: str, make: MakeContest, judge: Judge) -> None:
        self.partition, self.make, self.judge = partition, make, judge
        self.verdicts: dict[str, Verdict] = {}
        self.refused: list[Decision] = []
        self.templates: dict[int, Template] = {}
        self.left: dict[int, str] = {}
        for unit in list(partition.units.units):
            template = template_of(partition.config, device, unit.node.target)
            if unit.is_kernel or template is None:
                continue
            built = partition.build([unit.index], sorted(unit.values))
            if isinstance(built, Refusal) or (reason := unfit(built.kernel, template)):
                self.refuse(unit.index, built.reason if isinstance(built, Refusal) else reason)
            else:
                self.templates[unit.index], self.left[unit.index] = template, unit.reason
                partition.admit(unit.index, built)

    def decisions(self) -> list[Decision]:
        self.judge_all()
        made = [decision for index in self.templates for decision in self.settle(index)]
        return [*made, *self.refused]

    def refuse(self, index: int, reason: str) -> None:
        unit = self.partition.units[index]
        self.refused.append(Decision(unit.label, "a kernel", False, "", reason, unit.origin))

    # ---- the ways ----

    def ways(self, index: int) -> Iterator[Way]:
        """The legal ways for operation `index`, the one that takes most along first, the operation alone last."""
        template = self.templates[index]
        before = self.producers(index) if template.producers else ()
        after = self.consumers(index) if template.consumers else ()
        seen: set[tuple[int, ...]] = set()
        for parts in ((*before, index, *after), (index, *after), (*before, index), (index,)):
            if parts not in seen:
                seen.add(parts)
                built = self.legal(parts)
                if isinstance(built, Built):
                    yield Way(index, parts, built, self.make(parts, built))
                elif not self.verdicts:
                    self.refuse(index, built.reason)

    def producers(self, index: int) -> tuple[int, ...]:
        """The pointwise groups that compute something for operation `index` and nobody else."""
        partition, kinds = self.partition, self.templates[index].producers
        makers = {partition.units.maker.get(value) for value in partition.groups[index].built.inputs}
        keys = sorted({partition.home[maker] for maker in makers if maker is not None} & partition.groups.keys())
        return tuple(
            key
            for key in keys
            if self.is_plain(key, kinds)
            and all(partition.readers(value) == {index} for value in partition.groups[key].built.outputs)
            and not partition.units.returned & set(partition.groups[key].built.outputs)
        )

    def consumers(self, index: int) -> tuple[int, ...]:
        """The pointwise groups that read the result of operation `index`."""
        partition, kinds = self.partition, self.templates[index].consumers
        readers = {key for value in partition.groups[index].built.outputs for key in partition.readers(value)}
        return tuple(key for key in sorted(readers & partition.groups.keys()) if self.is_plain(key, kinds))

    def is_plain(self, key: int, kinds: list[str]) -> bool:
        group = self.partition.groups[key]
        return key not in self.templates and self.partition.kind(group.units, group.built) in kinds

    def legal(self, parts: tuple[int, ...]) -> Built | Refusal:
        """The one kernel of groups `parts`, or why there is none."""
        partition = self.partition
        if (between := partition.between(*parts)) is not None:
            return Refusal(f"{between.label} would have to run between them")
        units = frozenset().union(*(partition.groups[key].units for key in parts))
        built = partition.build(units, partition.outputs(units, parts))
        if isinstance(built, Refusal):
            return built
        if reason := why_no_matmul(built.kernel):
            return Refusal(f"together they are no matrix product: {reason}")
        return within_limits(partition.config, units, built) or built

    # ---- the verdicts ----

    def judge_all(self) -> None:
        """Have the ways of all operations judged: the first way of each, then the second of those that lost, ..."""
        waiting = [list(self.ways(index)) for index in self.templates]
        while waiting := [ways for ways in waiting if ways]:
            fresh = {ways[0].contest.key: ways[0].contest for ways in waiting}
            fresh = {key: contest for key, contest in fresh.items() if key not in self.verdicts}
            self.verdicts.update(zip(fresh, self.judge(list(fresh.values())), strict=True))
            waiting = [ways[1:] for ways in waiting if self.verdicts[ways[0].contest.key].schedule is None]

    def verdict(self, way: Way) -> Verdict:
        """A way that came up only after others were settled is judged when it is met."""
        key = way.contest.key
        if key not in self.verdicts:
            (self.verdicts[key],) = self.judge([way.contest])
        return self.verdicts[key]

    def settle(self, index: int) -> Iterator[Decision]:
        """Take the first way that wins, or leave the operation to the library."""
        partition, rule = self.partition, self.templates[index].name
        lost = ""
        for way in self.ways(index):
            verdict = self.verdict(way)
            if verdict.schedule is not None:
                yield self.decision(way, True, rule, verdict.reason)
                self.take(way, verdict)
                return
            lost = verdict.reason
            yield self.decision(way, False, rule, verdict.reason)
        partition.dismiss(index, f"{self.left[index]}: {lost}" if lost else self.left[index])

    def take(self, way: Way, verdict: Verdict) -> None:
        """Make one group of the parts of `way`."""
        partition, key = self.partition, way.index
        partition.units.units[key] = replace(partition.units[key], reason="")
        for part in way.parts:
            if part != way.index:
                key = partition.merge(key, part, way.built)
        partition.groups[key] = replace(partition.groups[key], schedule=verdict.schedule)

    def decision(self, way: Way, fused: bool, rule: str, reason: str) -> Decision:
        partition = self.partition
        unit = partition.units[way.index]
        around = [partition.units[min(partition.groups[part].units)].label for part in way.parts if part != way.index]
        apart = sum(step_traffic(step, way.contest.buffers) for step in way.contest.library)
        saved = max(0, apart - way.built.traffic) if fused else 0
        return Decision(unit.label, ", ".join(around) or "a kernel", fused, rule, reason, unit.origin, saved)


def unfit(kernel: Kernel, template: Template) -> str:
    """Why the kernel of an operation alone is none that `template` tries; empty if it is."""
    product = matmul_of(kernel)
    if product is None:
        return f"it is no matrix product: {why_no_matmul(kernel)}"
    if str(product.first.dtype) not in template.types:
        return f"it multiplies {product.first.dtype}; template '{template.name}' takes {', '.join(template.types)}"
    return ""


def template_of(config: FusionConfig, device: str, target: object) -> Template | None:
    """The template of `config` for an operator on a device of this type."""
    name = getattr(getattr(target, "overloadpacket", target), "__name__", "")
    found = (template for template in config.templates if name in template.operators and device in template.devices)
    return next(found, None)
