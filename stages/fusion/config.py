"""The keys of `conf/fusion/*.yaml`, checked. Rules are data: nothing in this room knows one of them by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from stages.ir.errors import choose, require

KINDS = ("pointwise", "reduction", "creation")
RELATIONS = ("same", "broadcast", "part", "row")
LIBRARY_EPILOGUES = ("linear_unary", "linear_add", "convolution_unary", "convolution_add", "convolution_add_relu")


@dataclass(frozen=True)
class Rule:
    """Which groups may become one kernel. A group's kind is "reduction" if it holds one, else "pointwise"; "creation"
    is an operation without tensor inputs (`full`, `arange`).

    name            what `explain` calls it
    anchors         kinds of the group that grows
    producers       kinds it may absorb of which it reads a result
    consumers       kinds it may absorb that read a result of it
    siblings        kinds it may absorb that read an input of it
    relations       how the loops of the two may relate:
                    "same"       both are pointwise over equally many positions
                    "row"        one reduces; the other reduces rows of the same number and length, or is pointwise
                                 over those rows or over their elements
                    "broadcast"  the producer has fewer positions, each used by several of the consumer
                    "part"       the consumer uses a part of what the producer computes
    max_recompute   scalar operations that may be computed again for each position of the consumer, where the producer
                    is broadcast or computed in several kernels instead of being stored; a transcendental counts as
                    `cost.TRANSCENDENTAL`. 0: everything is computed once
    max_row         the longest row, in elements: one row is worked on by one block of threads or one core
    min_share       the least part of the two groups' memory traffic that fusing them must save, 0 to 1
    """

    name: str
    anchors: list[str]
    producers: list[str] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)
    siblings: list[str] = field(default_factory=list)
    relations: list[str] = field(default_factory=lambda: ["same"])
    max_recompute: int = 0
    max_row: int = 1 << 17
    min_share: float = 0.0

    def __post_init__(self) -> None:
        key = f"fusion.rules[{self.name}]"
        require(bool(self.name), "fusion.rules", "a rule has no name", "Give it one: explain prints it.")
        for field_name in ("anchors", "producers", "consumers", "siblings"):
            for kind in getattr(self, field_name):
                choose(f"{key}.{field_name}", kind, KINDS)
        for relation in self.relations:
            choose(f"{key}.relations", relation, RELATIONS)
        require(bool(self.anchors), f"{key}.anchors", "is empty", f"Name kinds of groups: {', '.join(KINDS)}.")
        absorbs = self.producers or self.consumers or self.siblings
        require(bool(absorbs), key, "absorbs nothing", "Give it producers, consumers or siblings, or leave it out.")
        require(bool(self.relations), f"{key}.relations", "is empty", f"Name relations: {', '.join(RELATIONS)}.")
        require(self.max_recompute >= 0, f"{key}.max_recompute", f"must be 0 or more, not {self.max_recompute}")
        require(self.max_row >= 1, f"{key}.max_row", f"must be 1 or more, not {self.max_row}")
        require(0.0 <= self.min_share <= 1.0, f"{key}.min_share", f"must lie in 0 to 1, not {self.min_share}")


@dataclass(frozen=True)
class FusionConfig:
    """What is fused.

    rules                     the first one that matches two groups, and whose limits hold, fuses them; none: one
                              kernel an operation
    max_ops                   operations in one kernel at most
    max_inputs                buffers that one kernel reads at most
    emulate_precision_casts   round to the half type between fused operations, as unfused ones do
    library_epilogues         pointwise operations that the library computes inside a linear or convolution, by name
    nan_losing_epilogues      let the library compute relu, hardtanh and hardsigmoid there, too: oneDNN's turn a NaN
                              into a number, where eager's keep it
    """

    rules: list[Rule] = field(default_factory=list)
    max_ops: int = 64
    max_inputs: int = 24
    emulate_precision_casts: bool = False
    library_epilogues: list[str] = field(default_factory=list)
    nan_losing_epilogues: bool = False

    def __post_init__(self) -> None:
        mend = "Set it to 1 or more; fusion=none is one kernel an operation."
        require(self.max_ops >= 1, "fusion.max_ops", f"must be 1 or more, not {self.max_ops}", mend)
        require(self.max_inputs >= 1, "fusion.max_inputs", f"must be 1 or more, not {self.max_inputs}", mend)
        for name in self.library_epilogues:
            choose("fusion.library_epilogues", name, LIBRARY_EPILOGUES)
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        require(not twice, "fusion.rules", f"two rules are named {', '.join(twice)}", "Rename one.")
