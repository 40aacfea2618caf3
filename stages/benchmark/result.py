"""What a benchmark says; units are in the names of the fields."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stages.benchmark.conditions import Conditions
from stages.benchmark.memory import MemoryUse
from stages.benchmark.roofline import Ceilings
from stages.benchmark.statistics import Ratio, Summary


@dataclass(frozen=True)
class CompileTime:
    """Seconds from the call of the compiler to the end of the model's first call.

    cold_seconds   with empty caches
    warm_seconds   once more, with the caches that the cold compilation filled
    None where there is nothing to compile, or it was not timed.
    """

    cold_seconds: float | None = None
    warm_seconds: float | None = None


@dataclass(frozen=True)
class EngineResult:
    """One engine.

    latency            of one call: device time on CUDA, wall time on a CPU
    wall               of one call and, on CUDA, the wait for its end
    speedup            against the baseline; None for the baseline itself, and where either has no samples
    items_per_second   batch size / median latency
    calls_per_sample   calls that one sample is the mean of
    samples_ms         latency of each round, in order: sample k of every engine was taken in round k
    detail             which variant it is, where the name leaves that open
    failure            why there are no figures; empty where there are
    """

    name: str
    latency: Summary | None = None
    wall: Summary | None = None
    speedup: Ratio | None = None
    items_per_second: float | None = None
    memory: MemoryUse | None = None
    compile_time: CompileTime = CompileTime()
    calls_per_sample: int = 0
    samples_ms: tuple[float, ...] = ()
    detail: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Benchmark:
    """All engines of one run, timed in turn.

    noise    the baseline against itself: the largest difference that means nothing
    clock    "perf_counter" or "cuda_events"
    before, after   the machine at the first and after the last timing
    ceilings        what the device reaches, where it was measured
    other_cpus      CPUs that other processes kept busy while engines were timed, on the mean; None if not known
    load            what else used the machine then, in words; empty where it was little, or is not known
    """

    baseline: str
    engines: tuple[EngineResult, ...]
    noise: Ratio | None
    rounds: int
    seconds: float
    batch_size: int
    clock: str
    flush_l2: bool
    confidence: float
    before: Conditions
    after: Conditions
    ceilings: Ceilings | None = None
    other_cpus: float | None = None
    load: str = ""
    notes: tuple[str, ...] = ()

    def engine(self, name: str) -> EngineResult:
        """Raises `KeyError` where there is no engine of that name."""
        for result in self.engines:
            if result.name == name:
                return result
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain dicts, lists, numbers and text."""
        return asdict(self)
