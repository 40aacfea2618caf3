"""Graph to Graph: the arithmetic that the config asks for, where it takes more than capturing under autocast.

`capture_context` is entered while the model is captured and whenever a peer runs it: autocast and the matrix-product
mode. `convert` gives the model and inputs for bf16 and fp16. `run` makes half-precision products wide on a CPU that
would emulate them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stages.ir.graph import Graph, verify
from stages.precision.config import PrecisionConfig
from stages.precision.wide import has_half_instructions, widen_products

WHOLE_MODEL = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def capture_context(config: PrecisionConfig, device: torch.device) -> Iterator[None]:
    """Autocast for `amp`; for the others the float32 matrix-product mode: "high" (TF32) only for `tf32`.

    What it sets is put back on leaving, so that two configurations in one process do not meet.
    """
    before = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if config.mode == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = config.mode == "tf32"
    try:
        enabled = config.mode == "amp"
        dtype = getattr(torch, config.amp_dtype)
        with torch.autocast(device.type, dtype=dtype, enabled=enabled, cache_enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions


def convert(model: torch.nn.Module, inputs: Any, config: PrecisionConfig) -> tuple[torch.nn.Module, Any]:
    """For bf16 and fp16 a copy of `model` and `inputs` in that type (whole numbers stay); else both as they are."""
    dtype = WHOLE_MODEL.get(config.mode)
    if dtype is None:
        return model, inputs

    def narrow(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return copy.deepcopy(model).to(dtype), pytree.tree_map(narrow, inputs)


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
