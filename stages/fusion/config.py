"""The keys of `conf/fusion/*.yaml`, checked. Rules are data: nothing in this room knows one of them by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from stages.ir.errors import choose, require

KINDS = ("pointwise", "reduction", "creation")
RELATIONS = ("same", "broadcast", "part", "row")
LIBRARY_EPILOGUES = (
    "linear_unary",
    "linear_add",
    "convolution_unary",
    "convolution_add",
    "convolution_add_relu",
    "cudnn_relu",
    "cudnn_add_relu",
    "cublaslt_relu",
    "cublaslt_gelu_tanh",
    "cublaslt_gelu",
)
TEMPLATE_OPERATORS = ("mm", "addmm", "bmm", "baddbmm")
TEMPLATE_TYPES = ("bfloat16", "float16", "float32")
TEMPLATE_DEVICES = ("cuda", "cpu")
TEMPLATE_KINDS = ("pointwise",)


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
class Template:
    """Which operations of torch's library may become a kernel with what surrounds them, where that measures faster.

    name        what `explain` calls it
    operators   the operations, as ATen names them
    types       element types of the operands for which it is tried. Tensor cores take the half types; a product of
                float32 in full precision gains by what it fuses with, if at all
    devices     types of device where it is tried
    producers   kinds of groups that make an operand for it alone and may be computed in its loads
    consumers   kinds of groups that read its result and may be computed before it is stored
    """

    name: str
    operators: list[str]
    types: list[str] = field(default_factory=lambda: ["bfloat16", "float16"])
    devices: list[str] = field(default_factory=lambda: ["cuda"])
    producers: list[str] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        key = f"fusion.templates[{self.name}]"
        require(bool(self.name), "fusion.templates", "a template has no name", "Give it one: explain prints it.")
        require(bool(self.operators), f"{key}.operators", "is empty", f"Name some of {', '.join(TEMPLATE_OPERATORS)}.")
        for operator in self.operators:
            choose(f"{key}.operators", operator, TEMPLATE_OPERATORS)
        for dtype in self.types:
            choose(f"{key}.types", dtype, TEMPLATE_TYPES)
        for device in self.devices:
            choose(f"{key}.devices", device, TEMPLATE_DEVICES)
        for kind in (*self.producers, *self.consumers):
            choose(key, kind, TEMPLATE_KINDS)


@dataclass(frozen=True)
class FusionConfig:
    """What is fused.

    rules                     the first one that matches two groups, and whose limits hold, fuses them; none: one
                              kernel an operation
    max_ops                   operations in one kernel at most
    max_inputs                buffers that one kernel reads at most
    max_expressions           nodes of one kernel's expressions at most: a chain of copies into slices becomes choices
                              within choices, larger than the operations that they come from
    emulate_precision_casts   round to the half type between fused operations, as unfused ones do
    library_epilogues         pointwise operations that the library computes inside a linear or convolution, by name:
                              linear_*, convolution_*: oneDNN on a CPU; cudnn_*, cublaslt_*: on CUDA. cublaslt_gelu*
                              count for half types alone, since the library's tanh is approximate; cublaslt_gelu
                              computes the tanh form where the model has the exact one
    nan_losing_epilogues      let the library compute relu, hardtanh and hardsigmoid there, too: oneDNN's turn a NaN
                              into a number, where eager's keep it
    templates                 operations of the library that may be kernels: where it measures faster or, under an
                              autotune that times nothing, where the cost model of `autotune.products` sees a gain.
                              The first that names an operation counts
    """

    rules: list[Rule] = field(default_factory=list)
    max_ops: int = 64
    max_inputs: int = 24
    max_expressions: int = 1000
    emulate_precision_casts: bool = False
    library_epilogues: list[str] = field(default_factory=list)
    nan_losing_epilogues: bool = False
    templates: list[Template] = field(default_factory=list)

    def __post_init__(self) -> None:
        mend = "Set it to 1 or more; fusion=none is one kernel an operation."
        require(self.max_ops >= 1, "fusion.max_ops", f"must be 1 or more, not {self.max_ops}", mend)
        require(self.max_inputs >= 1, "fusion.max_inputs", f"must be 1 or more, not {self.max_inputs}", mend)
        too_few = f"must be 1 or more, not {self.max_expressions}"
        require(self.max_expressions >= 1, "fusion.max_expressions", too_few, mend)
        for name in self.library_epilogues:
            choose("fusion.library_epilogues", name, LIBRARY_EPILOGUES)
        names = [*(rule.name for rule in self.rules), *(template.name for template in self.templates)]
        twice = sorted({name for name in names if names.count(name) > 1})
        require(not twice, "fusion.rules", f"two rules are named {', '.join(twice)}", "Rename one.")
