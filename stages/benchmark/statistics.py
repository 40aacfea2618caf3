"""Numbers out of samples: percentiles, and ratios of medians with a bootstrap interval.

Samples of different engines are paired: number k of each was taken in round k, so drift of the machine (its clock, its
neighbours) is in both and leaves the ratio. The bootstrap resamples whole rounds, and with that keeps the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Percentiles of the time of one call, in milliseconds (linear interpolation between samples)."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    p99_ms: float
    min_ms: float


@dataclass(frozen=True)
class Ratio:
    """median(baseline) / median(engine): 2 means twice as fast. `low` and `high` bound the confidence interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 1: a difference that is more than chance."""
        return self.low > 1.0 or self.high < 1.0


def summarize(samples_ms: Sequence[float]) -> Summary:
    """Percentiles of at least one sample."""
    p10, p50, p90, p99 = np.percentile(samples_ms, (10, 50, 90, 99))
    return Summary(float(p50), float(p10), float(p90), float(p99), float(min(samples_ms)))


def ratio_of_medians(
    baseline_ms: Sequence[float], engine_ms: Sequence[float], confidence: float, resamples: int, seed: int
) -> Ratio:
    """The ratio of medians with its percentile bootstrap interval (Efron and Tibshirani 1993, chapter 13).

    The two sequences are paired by round and equally long. Raises `ValueError` where they are not.
    """
    pairs = np.array([baseline_ms, engine_ms], dtype=np.float64)
    rounds = pairs.shape[1]
    generator = np.random.default_rng(seed)
    ratios = np.empty(resamples)
    # In blocks, so that ten thousand resamples of ten thousand rounds take little memory.
    block = max(1, 2_000_000 // rounds)
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        medians = np.median(pairs[:, generator.integers(0, rounds, (count, rounds))], axis=2)
        ratios[start : start + count] = medians[0] / medians[1]
    low, high = np.percentile(ratios, (50 * (1 - confidence), 50 * (1 + confidence)))
    value = np.median(pairs[0]) / np.median(pairs[1])
    return Ratio(float(value), float(low), float(high))


def ratio_of_independent_medians(
    first_ms: Sequence[float],
    second_ms: Sequence[float],
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Ratio:
    """median(first) / median(second) of samples from different runs, with its percentile bootstrap interval.

    Each run is resampled by itself. What differed between the runs besides (the machine's clock, its load) is in the
    ratio and not in the interval, so that an interval that leaves out 1 is needed, but does not prove a difference.
    """
    generator = np.random.default_rng(seed)
    first, second = (np.asarray(samples, dtype=np.float64) for samples in (first_ms, second_ms))
    ratios = _resampled_medians(first, resamples, generator) / _resampled_medians(second, resamples, generator)
    low, high = np.percentile(ratios, (50 * (1 - confidence), 50 * (1 + confidence)))
    return Ratio(float(np.median(first) / np.median(second)), float(low), float(high))


def interval_of_median(
    samples_ms: Sequence[float], confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Ratio:
    """The median in milliseconds, as a `Ratio` to one millisecond, with its percentile bootstrap interval."""
    medians = _resampled_medians(np.asarray(samples_ms, dtype=np.float64), resamples, np.random.default_rng(seed))
    low, high = np.percentile(medians, (50 * (1 - confidence), 50 * (1 + confidence)))
    return Ratio(float(np.median(samples_ms)), float(low), float(high))


def quotient(first: Ratio, second: Ratio) -> Ratio:
    """first / second of independent positive figures, of each of which only the interval is known.

    The difference of their logarithms, with limits recovered from the limits of the two (MOVER, Zou and Donner 2008):
    d - sqrt((l1 - d1)^2 + (u2 - d2)^2) and d + sqrt((u1 - d1)^2 + (l2 - d2)^2). The confidence is that of the two.
    """
    d1, l1, u1, d2, l2, u2 = (
        math.log(value) for ratio in (first, second) for value in (ratio.value, ratio.low, ratio.high)
    )
    low = d1 - d2 - math.hypot(l1 - d1, u2 - d2)
    high = d1 - d2 + math.hypot(u1 - d1, l2 - d2)
    return Ratio(math.exp(d1 - d2), math.exp(low), math.exp(high))


def _resampled_medians(samples: Any, resamples: int, generator: np.random.Generator) -> Any:
    """The median of each of `resamples` resamples; in blocks, so that many samples take little memory."""
    block = max(1, 2_000_000 // len(samples))
    counts = [min(block, resamples - start) for start in range(0, resamples, block)]
    draws = (samples[generator.integers(0, len(samples), (count, len(samples)))] for count in counts)
    return np.concatenate([np.median(draw, axis=1) for draw in draws])
