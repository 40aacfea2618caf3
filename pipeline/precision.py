"""What a precision means for eager, which is what our own engine is measured against.

fp32   IEEE single precision, no TF32 on the tensor cores
tf32   single precision with TF32 products in matrix multiplications and convolutions (CUDA)
amp    under `torch.autocast` of the dtype, as torch defines it
bf16, fp16   weights and floating inputs converted to the type
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree

from stages.precision.config import PrecisionConfig

_WHOLE = ("bf16", "fp16")


def context_of(config: PrecisionConfig, device_type: str) -> AbstractContextManager[Any]:
    """The autocast context in which eager runs, and in which a model is captured."""
    if config.name == "amp":
        return torch.autocast(device_type, dtype=getattr(torch, config.dtype))
    return nullcontext()


@contextmanager
def products(config: PrecisionConfig) -> Iterator[None]:
    """Whether CUDA multiplies fp32 in TF32, for the whole process while inside. Torch's defaults differ by library."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = config.name == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def converted(model: Callable[..., Any], config: PrecisionConfig) -> Callable[..., Any]:
    """For bf16 and fp16, a copy of `model` in that type, which converts floating inputs first; else `model` itself."""
    if config.name not in _WHOLE:
        return model
    dtype = getattr(torch, config.dtype)
    inner = copy.deepcopy(model).to(dtype) if isinstance(model, torch.nn.Module) else model

    def convert(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if floating else leaf

    def half(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _pytree.tree_map(convert, (args, kwargs))
        return inner(*args, **kwargs)

    return half


def eager_at(model: Callable[..., Any], config: PrecisionConfig, device_type: str) -> Callable[..., Any]:
    """`model` as eager runs it at this precision, called with the same arguments."""
    inner = converted(model, config)

    def eager(*args: Any, **kwargs: Any) -> Any:
        with context_of(config, device_type):
            return inner(*args, **kwargs)

    return eager
