"""The device's ceilings, measured: how fast it copies memory and multiplies matrices. Once a process for each device.

A kernel that moves B bytes and does F operations takes at least max(B / copy bandwidth, F / matmul rate) seconds
(Williams, Waterman and Patterson, "Roofline", CACM 2009). The ceilings are what torch itself reaches here, not what the
data sheet says, so a fraction over 1 is possible: a kernel whose data lie in a cache, or a better product than torch's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch

from stages.ir.library_flags import float32_products

# Copy: large enough to leave every cache. Matmul: the larger size only where the smaller one was not slow already.
_COPY_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}
_MATMUL_SIZES = {"cpu": (256, 768), "cuda": (2048, 8192)}
_DTYPES = {
    "cpu": ("float32", "bfloat16"),
    "cuda": ("float32", "tf32", "float16", "bfloat16"),
}
_REPEATS, _SECONDS, _SLOW_SECONDS = 5, 0.5, 0.02


@dataclass(frozen=True)
class Ceilings:
    """What the device reaches.

    copy_bytes_per_second    bytes read plus bytes written by `Tensor.copy_`
    matmul_flop_per_second   2 n^3 / seconds of a square product, by type ("tf32": float32 through tensor cores)
    seconds                  that measuring took
    """

    device: str
    copy_bytes_per_second: float
    matmul_flop_per_second: Mapping[str, float]
    seconds: float

    def bound_seconds(self, nbytes: float, flop: float, dtype: str) -> float:
        """The least time for `nbytes` of traffic and `flop` operations on `dtype` (else float32's rate)."""
        rate = self.matmul_flop_per_second.get(dtype, self.matmul_flop_per_second["float32"])
        return max(nbytes / self.copy_bytes_per_second, flop / rate)


def measure_ceilings(device: torch.device) -> Ceilings:
    """The ceilings of `device` with torch's present number of threads; about a second the first time."""
    index = device.index if device.type != "cuda" or device.index is not None else torch.cuda.current_device()
    return _measure(device.type, index, torch.get_num_threads())


@cache
def _measure(kind: str, index: int | None, threads: int) -> Ceilings:
    device = torch.device(kind, index) if index is not None else torch.device(kind)
    begin = time.perf_counter()
    with torch.no_grad():
        copy = _copy_rate(device)
        matmul = {name: _matmul_rate(device, name) for name in _DTYPES.get(kind, ("float32",))}
    return Ceilings(str(device), copy, matmul, time.perf_counter() - begin)


def _copy_rate(device: torch.device) -> float:
    count = _COPY_BYTES.get(device.type, 128 << 20)
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * count / _fastest(lambda: target.copy_(source), device)


def _matmul_rate(device: torch.device, name: str) -> float:
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    best = 0.0
    with float32_products(tf32=name == "tf32"):
        for size in _MATMUL_SIZES.get(device.type, (256, 768)):
            square = torch.randn(size, size, device=device, dtype=dtype)
            seconds = _fastest(partial(torch.mm, square, square), device)
            best = max(best, 2 * size**3 / seconds)
            if seconds > _SLOW_SECONDS:
                break
    return best


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of a few calls, after one untimed; fewer where they are slow."""
    call()
    best, begin = float("inf"), time.perf_counter()
    for _ in range(_REPEATS):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - begin > _SECONDS:
            break
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
