"""Time engines in turn: A B C A B C ..., so that all of them meet the same machine.

Comes in: callables by name. Goes out: `Samples`, one a round for each engine, and the engines that raised. On the CPU a
call is timed with `perf_counter`; on CUDA with a pair of events (device time, what ratios are made of) and with
`perf_counter` around call and synchronisation (wall time, what the caller waits).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from stages.benchmark.config import BenchmarkConfig

Engine = Callable[[], object]

FEWEST_ROUNDS = 3

# A call shorter than this is made once untimed before each sample. The engine before it has filled the caches with its
# own weights and outputs, and whoever follows an engine with the same weights would look faster than it is.
SETTLE_BELOW_MS = 50.0


@dataclass
class Samples:
    """Milliseconds a call, one entry a round; `calls_per_sample` calls make one entry (their mean).

    settles   whether an untimed call comes before each sample
    """

    calls_per_sample: int
    settles: bool
    device_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)


class Clock(Protocol):
    """Times `calls` calls of an engine: (device, wall) milliseconds a call."""

    name: str

    def time(self, engine: Engine, calls: int) -> tuple[float, float]: ...


class WallClock:
    """`perf_counter` around the calls; device time is wall time."""

    name = "perf_counter"

    def time(self, engine: Engine, calls: int) -> tuple[float, float]:
        begin = time.perf_counter()
        for _ in range(calls):
            engine()
        each = (time.perf_counter() - begin) * 1e3 / calls
        return each, each


class CudaClock:
    """CUDA events on the current stream around the calls, started on an idle device.

    The device is idle at the first event, so the time between the events has in it whatever the device waits for the
    host to launch: what one call costs a caller who waits for it.
    """

    name = "cuda_events"

    def __init__(self, device: torch.device, flush_l2: bool) -> None:
        self._device = device
        self._flush: torch.Tensor | None = None
        if flush_l2:
            # Twice the cache, in case lines are replaced in no strict order.
            size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
            self._flush = torch.empty(size, dtype=torch.uint8, device=device)

    def time(self, engine: Engine, calls: int) -> tuple[float, float]:
        if self._flush is not None:
            self._flush.zero_()
            calls = 1
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(self._device)
        begin = time.perf_counter()
        start.record()
        for _ in range(calls):
            engine()
        end.record()
        torch.cuda.synchronize(self._device)
        wall = (time.perf_counter() - begin) * 1e3
        return start.elapsed_time(end) / calls, wall / calls


def clock_for(device: torch.device, flush_l2: bool = False) -> Clock:
    return CudaClock(device, flush_l2) if device.type == "cuda" else WallClock()


def interleave(
    engines: Mapping[str, Engine], clock: Clock, config: BenchmarkConfig
) -> tuple[dict[str, Samples], dict[str, str]]:
    """Warm up, then time every engine once a round until the config's time and rounds are reached.

    Returns the samples by name, and by name why an engine raised; such an engine has no samples.
    """
    samples: dict[str, Samples] = {}
    failed: dict[str, str] = {}
    for name, engine in engines.items():
        try:
            estimate_ms = _warm_up(engine, clock, config)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            continue
        calls = 1 if config.flush_l2 else max(1, math.ceil(config.batch_below_us / 1e3 / max(estimate_ms, 1e-6)))
        samples[name] = Samples(min(calls, 10_000), settles=estimate_ms < SETTLE_BELOW_MS)
    with _no_collection():
        begin, rounds = time.perf_counter(), 0
        while samples and not _enough(rounds, time.perf_counter() - begin, config):
            for name in list(samples):
                try:
                    if samples[name].settles:
                        engines[name]()
                    device_ms, wall_ms = clock.time(engines[name], samples[name].calls_per_sample)
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {error}"
                    del samples[name]
                    continue
                samples[name].device_ms.append(device_ms)
                samples[name].wall_ms.append(wall_ms)
            rounds += 1
    return samples, failed


def _enough(rounds: int, seconds: float, config: BenchmarkConfig) -> bool:
    if seconds >= config.max_seconds:
        return rounds >= min(FEWEST_ROUNDS, config.min_rounds)
    return rounds >= config.min_rounds and seconds >= config.min_seconds


def _warm_up(engine: Engine, clock: Clock, config: BenchmarkConfig) -> float:
    """Run `engine` as the config asks; its fastest call in milliseconds of wall time."""
    fastest, count, begin = math.inf, 0, time.perf_counter()
    while count < config.warmup_iterations or time.perf_counter() - begin < config.warmup_seconds:
        fastest = min(fastest, clock.time(engine, 1)[1])
        count += 1
        if time.perf_counter() - begin > config.max_seconds:
            break
    return fastest


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector runs before the timing and not within it."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
