"""Peak memory of one call of an engine, in a pass of its own, and how it was measured.

CUDA: the most bytes that torch's caching allocator had live during the call, less those live before it.
CPU:  growth of resident memory. `malloc_trim` first hands freed heap pages back, then the kernel's high-water mark is
      reset (a 5 to /proc/self/clear_refs) and read after the call, less the resident memory before it. It counts pages
      that were touched, whoever allocated them (torch, oneDNN, an engine's own code), to about a megabyte.

What an engine keeps between calls (an arena, packed weights, the pool of a CUDA graph) is in neither: the caller says
it in `held_bytes`, and the report adds it.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_REPEATS = 3


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of one engine.

    call_bytes   the peak during a call over what was there before; None where it could not be measured
    held_bytes   what it keeps between calls, as its builder says; None where that is not known
    method       how call_bytes was measured, or why it was not
    """

    call_bytes: int | None
    held_bytes: int | None
    method: str

    @property
    def peak_bytes(self) -> int | None:
        """The most that the engine has at once, as far as known."""
        if self.call_bytes is None:
            return None
        return self.call_bytes + (self.held_bytes or 0)


def measure_memory(engine: Callable[[], object], device: torch.device, held_bytes: int | None) -> MemoryUse:
    """Call `engine` a few times and take the largest peak."""
    if device.type == "cuda":
        peak = max(_cuda_peak(engine, device) for _ in range(_REPEATS))
        return MemoryUse(peak, held_bytes, "torch.cuda.max_memory_allocated over one call")
    try:
        peak = max(_resident_peak(engine) for _ in range(_REPEATS))
    except (OSError, KeyError) as error:
        return MemoryUse(None, held_bytes, f"not measured: the kernel's high-water mark cannot be reset ({error})")
    return MemoryUse(peak, held_bytes, "growth of resident memory over one call (VmHWM)")


def _cuda_peak(engine: Callable[[], object], device: torch.device) -> int:
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = engine()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del result
    return peak


def _resident_peak(engine: Callable[[], object]) -> int:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
    if trim is not None:
        trim(0)
    _CLEAR.write_text("5")
    before = _status_bytes("VmRSS")
    result = engine()
    peak = _status_bytes("VmHWM") - before
    del result
    return max(0, peak)


def _status_bytes(key: str) -> int:
    """A line such as `VmHWM:   1960 kB` of /proc/self/status, in bytes. Raises `KeyError` where there is none."""
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise KeyError(f"no {key} in {_STATUS}")
