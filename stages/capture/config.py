"""The config of capture: the keys of `conf/capture/*.yaml`."""

from __future__ import annotations

from dataclasses import dataclass

from stages.ir.errors import require


@dataclass(frozen=True)
class CaptureConfig:
    """fullgraph   a graph break is an error that names its source line, instead of a split into several graphs
    sizes_kept     how many sets of concrete sizes keep their compiled graph, for each graph that Dynamo made dynamic;
                   the least recently used goes first
    """

    fullgraph: bool = False
    sizes_kept: int = 8

    def __post_init__(self) -> None:
        require(isinstance(self.fullgraph, bool), "capture.fullgraph", f"{self.fullgraph!r} is neither true nor false")
        require(
            isinstance(self.sizes_kept, int) and self.sizes_kept >= 1,
            "capture.sizes_kept",
            f"{self.sizes_kept!r} is no count",
            "Give a whole number of at least 1.",
        )
