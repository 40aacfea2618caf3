"""What `conf/benchmark/*.yaml` says (how to time) and what `conf/engine/*.yaml` says (against whom)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.ir.errors import choose, require


@dataclass(frozen=True)
class BenchmarkConfig:
    """Keys of `conf/benchmark`.

    warmup_iterations   untimed calls of each engine, at least
    warmup_seconds      seconds of untimed calls of each engine, at least
    min_rounds          rounds, in each of which every engine is timed once, at least
    min_seconds         seconds of timed rounds, all engines together, at least
    max_seconds         after this many seconds no round is begun, however few there were (but never before the third)
    batch_below_us      a call that takes less than this many microseconds is timed in batches that take as long
    flush_l2            CUDA: overwrite the L2 cache before each timed call; calls are then never batched
    noise_floor         time the baseline as two engines, so that their ratio shows what a difference is worth
    memory              measure peak memory in a pass of its own
    roofline            measure the device's copy bandwidth and matmul rates
    confidence          of the intervals of ratios
    resamples           bootstrap resamples of each interval
    seed                of the bootstrap
    """

    warmup_iterations: int = 3
    warmup_seconds: float = 0.5
    min_rounds: int = 20
    min_seconds: float = 5.0
    max_seconds: float = 60.0
    batch_below_us: float = 100.0
    flush_l2: bool = False
    noise_floor: bool = True
    memory: bool = True
    roofline: bool = True
    confidence: float = 0.95
    resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("warmup_iterations", "min_rounds", "resamples"):
            value = getattr(self, key)
            require(value >= 1, f"benchmark.{key}", f"{value} is too few", "Give 1 or more.")
        for key in ("warmup_seconds", "min_seconds", "batch_below_us", "seed"):
            value = getattr(self, key)
            require(value >= 0, f"benchmark.{key}", f"{value} is negative")
        require(
            self.max_seconds >= self.min_seconds,
            "benchmark.max_seconds",
            f"{self.max_seconds} is less than benchmark.min_seconds, {self.min_seconds}",
        )
        require(0 < self.confidence < 1, "benchmark.confidence", f"{self.confidence} is not between 0 and 1")


PEERS = ("eager", "eager_cudagraph", "inductor", "inductor_max", "inductor_best")
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
VARIANTS = tuple(f"{mode}{frozen}" for mode in MODES for frozen in ("", "+frozen"))


@dataclass(frozen=True)
class EngineConfig:
    """Keys of `conf/engine`.

    peers                names out of `PEERS`, timed in this order beside our own engine
    baseline             the peer that ratios are taken against
    warm_compile         compile each Inductor peer once more from its filled cache, to time that too
    best_variants_cpu    what `inductor_best` chooses from on a CPU: a mode of torch.compile, and `+frozen` where the
                         weights are frozen
    best_variants_cuda   the same on a GPU
    """

    peers: Sequence[str] = ("eager", "inductor")
    baseline: str = "eager"
    warm_compile: bool = True
    best_variants_cpu: Sequence[str] = ("default", "default+frozen")
    best_variants_cuda: Sequence[str] = (
        "default",
        "default+frozen",
        "reduce-overhead",
        "reduce-overhead+frozen",
        "max-autotune+frozen",
    )

    def __post_init__(self) -> None:
        for name in self.peers:
            choose("engine.peers", name, PEERS)
        require(
            len(self.peers) > 0,
            "engine.peers",
            "names no engine",
            f"Valid: {', '.join(PEERS)}; the stage 'benchmark' can be left out.",
        )
        require(
            self.baseline in self.peers,
            "engine.baseline",
            f"'{self.baseline}' is none of engine.peers",
            f"Add it to engine.peers, or name one of {', '.join(self.peers)}.",
        )
        for key in ("best_variants_cpu", "best_variants_cuda"):
            for name in getattr(self, key):
                choose(f"engine.{key}", name, VARIANTS)
            require(len(getattr(self, key)) > 0, f"engine.{key}", "names no variant", f"Valid: {', '.join(VARIANTS)}.")
