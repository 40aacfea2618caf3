"""The time of a kernel: candidates measured in turn, round by round, so that drift of the machine hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stages.ir.kernel import Kernel


@dataclass(frozen=True)
class Timing:
    """Seconds of one launch: the median over rounds, and the spread from the fastest round to the slowest."""

    seconds: float
    fastest: float
    slowest: float


def sample_buffers(kernel: Kernel, device: torch.device) -> list[torch.Tensor]:
    """One tensor for each of `kernel.buffers`, as `sample` makes them."""
    generator = torch.Generator(device=device).manual_seed(0)
    return [sample(buffer.dtype.torch, buffer.size, generator) for buffer in kernel.buffers]


def sample(dtype: torch.dtype, size: int, generator: torch.Generator) -> torch.Tensor:
    """`size` elements on the generator's device: normal noise, or zeros for whole numbers, which may be indices."""
    device = generator.device
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(dtype)
    if dtype is torch.bool:
        return torch.rand(size, generator=generator, device=device) < 0.5
    return torch.zeros(size, device=device, dtype=dtype)


def time_in_turn(
    launches: Sequence[Callable[[], None]], device: torch.device, milliseconds: float, rounds: int
) -> list[Timing]:
    """The time of each launch; each gets `milliseconds` in each of `rounds` rounds."""
    measure = [
        _cuda_measure(run, milliseconds) if device.type == "cuda" else _cpu_measure(run, milliseconds)
        for run in launches
    ]
    samples: list[list[float]] = [[] for _ in launches]
    for _ in range(rounds):
        for times, take in zip(samples, measure):
            times.append(take())
    return [Timing(statistics.median(times), min(times), max(times)) for times in samples]


def _repeats(run_once: Callable[[], float], milliseconds: float) -> int:
    """Launches that fill `milliseconds`, from one measured launch after a warm-up."""
    run_once()
    return max(1, min(10_000, int(milliseconds * 1e-3 / max(run_once(), 1e-7))))


def _cpu_measure(run: Callable[[], None], milliseconds: float) -> Callable[[], float]:
    def once() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    count = _repeats(once, milliseconds)

    def take() -> float:
        start = time.perf_counter()
        for _ in range(count):
            run()
        return (time.perf_counter() - start) / count

    return take


def _cuda_measure(run: Callable[[], None], milliseconds: float) -> Callable[[], float]:
    """Launches recorded in one CUDA graph, so that the host's pace does not enter; timed with device events."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()

    def events(work: Callable[[], None]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3

    count = min(50, _repeats(lambda: events(run), milliseconds) + 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            run()
    graph.replay()
    replays = _repeats(lambda: events(graph.replay), milliseconds)

    def repeat() -> None:
        for _ in range(replays):
            graph.replay()

    def take() -> float:
        return events(repeat) / (count * replays)

    return take
