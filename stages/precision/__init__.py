"""Graph to Graph: the arithmetic that the config asks for, where it takes more than capturing under autocast.

`capture_context` is entered while the model is captured and whenever a peer runs it: autocast and the matrix-product
mode. `run` makes half-precision products wide on a CPU that would emulate them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stages.ir.graph import Graph, verify
from stages.ir.library_flags import float32_products
from stages.precision.config import PrecisionConfig
from stages.precision.wide import has_half_instructions, widen_products


@contextmanager
def products(config: PrecisionConfig) -> Iterator[None]:
    """The float32 matrix-product mode of the process: "high" (TF32 on CUDA) only for `tf32`; put back on leaving."""
    with float32_products(tf32=config.mode == "tf32"):
        yield


@contextmanager
def capture_context(config: PrecisionConfig, device: torch.device) -> Iterator[None]:
    """`products`, and for `amp` autocast."""
    dtype = getattr(torch, config.amp_dtype)
    autocast = torch.autocast(device.type, dtype=dtype, enabled=config.mode == "amp", cache_enabled=False)
    with products(config), autocast:
        yield


def run(graph: Graph, config: PrecisionConfig) -> Graph:
    """Widen half-precision products where `config.wide_products` says so; a note tells that it was done."""
    if graph.device.type != "cpu" or config.wide_products == "never":
        return graph
    for dtype in (torch.bfloat16, torch.float16):
        if config.wide_products == "always" or not has_half_instructions(dtype):
            count = widen_products(graph, dtype)
            if count:
                name = str(dtype).removeprefix("torch.")
                why = "" if config.wide_products == "always" else f": this processor has no {name} instructions"
                graph.notes.append(
                    f"precision: {count} {name} matrix products and convolutions run in float32 on {name} values, and "
                    f"their results are rounded to {name}{why}"
                )
    verify(graph)
    return graph
