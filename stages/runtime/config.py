"""Keys of `conf/runtime`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RuntimeConfig:
    """cuda_graph: on CUDA, the program is captured in a CUDA graph."""

    cuda_graph: bool = True
