"""Time of each step of a program by itself, to be held against the roofline.

Comes in: `run_steps(inputs, hook)` of an executable, which runs the program step by step and calls
hook(step_index, step, outputs) after each. Goes out: the median milliseconds of each step. On the CPU that is wall time
from step to step. On CUDA it is device time between events: the device is first kept busy for so long that the host
has launched every step before the first one begins, so that no step waits for its launch.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

Hook = Callable[[int, Any, Mapping[str, torch.Tensor]], None]
RunSteps = Callable[[Sequence[torch.Tensor], Hook], object]

# Twice the wall time of launching all steps, at the highest clock a GPU of today runs at.
_AHEAD = 2.0
_CLOCK_HZ = 2.0e9


def time_steps(
    run_steps: RunSteps, inputs: Sequence[torch.Tensor], device: torch.device, repeats: int = 5
) -> list[float]:
    """Median milliseconds of each step over `repeats` runs, after one that is not counted."""
    once = _cuda_run if device.type == "cuda" else _cpu_run
    start = time.perf_counter()
    once(run_steps, inputs, device, 0.0)
    launching = time.perf_counter() - start
    taken = [once(run_steps, inputs, device, launching) for _ in range(repeats)]
    return [median(times) for times in zip(*taken, strict=True)]


def _cpu_run(
    run_steps: RunSteps, inputs: Sequence[torch.Tensor], device: torch.device, launching: float
) -> list[float]:
    marks = [time.perf_counter()]
    run_steps(inputs, lambda index, step, outputs: marks.append(time.perf_counter()))
    return [(end - begin) * 1e3 for begin, end in itertools.pairwise(marks)]


def _cuda_run(
    run_steps: RunSteps, inputs: Sequence[torch.Tensor], device: torch.device, launching: float
) -> list[float]:
    def mark(*_: Any) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        marks.append(event)

    marks: list[torch.cuda.Event] = []
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        torch.cuda._sleep(int(launching * _AHEAD * _CLOCK_HZ))
        mark()
        run_steps(inputs, mark)
        torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in itertools.pairwise(marks)]
