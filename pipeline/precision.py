"""What a precision means for eager, which is what our own engine is measured against.

fp32        IEEE single precision, no TF32 on the tensor cores
tf32        single precision with TF32 products in matrix multiplications and convolutions (CUDA)
amp         under `torch.autocast`, as torch defines it
bf16, fp16  a copy of the model converted to the type, and floating inputs converted at each call
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils import _pytree

from pipeline.stages import service
from stages.precision.config import PrecisionConfig

WHOLE_MODEL = {"bf16": torch.bfloat16, "fp16": torch.float16}


def context_of(config: PrecisionConfig, device: torch.device) -> AbstractContextManager[Any]:
    """The context in which eager runs and a model is captured: autocast, and whether products may be TF32."""
    context: AbstractContextManager[Any] = service("capture_context")(config, device)
    return context


def capturing(config: PrecisionConfig, device: torch.device) -> AbstractContextManager[Any]:
    """The context in which a model is captured: in fp32, the default, an autocast of the user's own counts."""
    return products(config) if config.mode == "fp32" else context_of(config, device)


def ambient_autocast() -> tuple[torch.dtype | None, ...]:
    """The dtype of the autocast that the caller is in, for the CPU and CUDA; None where there is none."""
    return tuple(
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in ("cpu", "cuda")
    )


def products(config: PrecisionConfig) -> AbstractContextManager[Any]:
    """Whether CUDA multiplies float32 in TF32, as `context_of` has it, without its autocast: for running programs."""
    context: AbstractContextManager[Any] = service("products")(config)
    return context


def converted(model: Callable[..., Any], config: PrecisionConfig) -> Callable[..., Any]:
    """For bf16 and fp16 a copy of `model` in that type; else `model` itself. A function has nothing to convert."""
    dtype = WHOLE_MODEL.get(config.mode)
    if dtype is None or not isinstance(model, torch.nn.Module):
        return model
    return copy.deepcopy(model).to(dtype)


def narrowed(
    args: Sequence[Any], kwargs: Mapping[str, Any], config: PrecisionConfig
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the converted model takes them: floating tensors in its type, the rest as it is."""
    dtype = WHOLE_MODEL.get(config.mode)
    if dtype is None:
        return tuple(args), dict(kwargs)

    def narrow(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return _pytree.tree_map(narrow, (tuple(args), dict(kwargs)))


def taking_any(call: Callable[..., Any], config: PrecisionConfig) -> Callable[..., Any]:
    """`call`, which takes arguments of the precision's type, as one that takes the user's."""
    if config.mode not in WHOLE_MODEL:
        return call

    def narrowing(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = narrowed(args, kwargs, config)
        return call(*args, **kwargs)

    return narrowing


def eager_at(model: Callable[..., Any], config: PrecisionConfig, device: torch.device) -> Callable[..., Any]:
    """`model` as eager runs it at this precision, called with the user's arguments."""
    inner = taking_any(converted(model, config), config)

    def eager(*args: Any, **kwargs: Any) -> Any:
        with context_of(config, device):
            return inner(*args, **kwargs)

    return eager
