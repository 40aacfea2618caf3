"""torch's settings for float32 products and for cuDNN, set for a while.

torch has two interfaces to the same state: `torch.set_float32_matmul_precision` with `allow_tf32`, and
`fp32_precision` for each library and operation. The older one refuses to be read once the newer one was used, and
`torch.testing` freezes its setters; what is read and written here works whichever way the process is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# What `torch.backends.<library>.<operation>.fp32_precision` calls, without its overhead: these run at each call.
_get, _put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
_PLACES = (("cuda", "matmul"), ("mkldnn", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))


def tf32_matmuls() -> bool:
    """Whether cuBLAS may round float32 operands of a matrix product to TF32."""
    return _get("cuda", "matmul") == "tf32"


def tf32_convolutions() -> bool:
    """Whether cuDNN may round float32 operands of a convolution to TF32."""
    return _get("cuda", "conv") == "tf32"


@contextmanager
def float32_products(tf32: bool) -> Iterator[None]:
    """Matrix products, convolutions and recurrences of float32 in TF32 on CUDA, or in float32 everywhere."""
    before = [_get(*place) for place in _PLACES]
    try:
        older: str | None = torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer interface was used
        older = None
    convolutions = tf32_convolutions()
    _set("high" if tf32 else "highest", tf32)
    if not tf32:
        for place in _PLACES:  # or what all libraries are allowed would hold here
            _put(*place, "ieee")
    try:
        yield
    finally:
        _set(older or "highest", convolutions)
        for place, value in zip(_PLACES, before, strict=True):
            _put(*place, value)


@contextmanager
def cudnn_benchmark(wanted: bool) -> Iterator[None]:
    """cuDNN times its algorithms for each new convolution, and remembers the fastest for the process."""
    before = torch.backends.cudnn.benchmark
    torch._C._set_cudnn_benchmark(before or wanted)
    try:
        yield
    finally:
        torch._C._set_cudnn_benchmark(before)


def _set(matmuls: str, convolutions: bool) -> None:
    torch.set_float32_matmul_precision(matmuls)
    torch._C._set_cudnn_allow_tf32(convolutions)
