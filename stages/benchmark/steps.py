"""Time of each step of a program by itself, to be held against the roofline.

Comes in: `run_steps(inputs, hook)` of an executable, which runs the program step by step and calls
hook(step_index, step, {buffer: tensor}) after each. Goes out: the median milliseconds of each step. Between two steps
the device is waited for, so the steps' sum is more than the program's own time, in which they overlap with launching;
steps of a few microseconds are over-stated most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

Hook = Callable[[int, Any, Mapping[str, torch.Tensor]], None]
RunSteps = Callable[[Sequence[torch.Tensor], Hook], object]


def time_steps(
    run_steps: RunSteps, inputs: Sequence[torch.Tensor], device: torch.device, repeats: int = 5
) -> list[float]:
    """Median milliseconds of each step over `repeats` runs, after one that is not counted."""
    taken: dict[int, list[float]] = {}
    last = 0.0

    def hook(index: int, step: Any, outputs: Mapping[str, torch.Tensor]) -> None:
        nonlocal last
        _wait(device)
        taken.setdefault(index, []).append((time.perf_counter() - last) * 1e3)
        last = time.perf_counter()

    for _ in range(repeats + 1):
        _wait(device)
        last = time.perf_counter()
        run_steps(inputs, hook)
    return [median(taken[index][1:]) for index in sorted(taken)]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
