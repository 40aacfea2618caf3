"""Who is timed when, and what becomes of the samples: with a clock made by hand, so that no test measures time."""

import json

import pytest
import torch

from stages import benchmark
from stages.benchmark import BenchmarkConfig, CompileTime, EngineConfig, run
from stages.benchmark.memory import measure_memory
from stages.benchmark.timing import CudaClock, WallClock, clock_for, interleave
from stages.ir.errors import ConfigError

CPU = torch.device("cpu")
QUICK = BenchmarkConfig(warmup_iterations=1, warmup_seconds=0, min_rounds=4, min_seconds=0, roofline=False)


class HandClock:
    """Says that an engine takes the milliseconds that it returns, and writes down whom it timed."""

    name = "hand"

    def __init__(self):
        self.order = []

    def time(self, engine, calls):
        value = engine()
        self.order.append((value, calls))
        return value, value + 0.5


def test_engines_are_timed_in_turn():
    clock = HandClock()
    samples, failed = interleave({"a": lambda: 60.0, "b": lambda: 70.0, "c": lambda: 80.0}, clock, QUICK)
    assert [value for value, _ in clock.order] == [60.0, 70.0, 80.0] * 5  # one warm-up, then four rounds
    assert samples["b"].device_ms == [70.0] * 4 and samples["b"].wall_ms == [70.5] * 4 and failed == {}


def test_short_calls_are_batched_and_settled():
    made = []
    clock = HandClock()
    engines = {"short": lambda: made.append("short") or 0.03, "long": lambda: made.append("long") or 60.0}
    # The hand clock's wall time adds 0.5 ms: 0.53 ms in all, so 2000 microseconds want ceil(2 / 0.53) = 4 calls.
    config = BenchmarkConfig(warmup_iterations=1, warmup_seconds=0, min_rounds=2, min_seconds=0, batch_below_us=2000)
    samples, _ = interleave(engines, clock, config)
    assert (samples["short"].calls_per_sample, samples["long"].calls_per_sample) == (4, 1)
    assert clock.order == [(0.03, 1), (60.0, 1)] + [(0.03, 4), (60.0, 1)] * 2
    assert made == ["short", "long"] + ["short", "short", "long"] * 2


def test_an_engine_that_raises_does_not_stop_the_others():
    calls = iter(range(100))

    def breaks():
        if next(calls) >= 3:
            raise RuntimeError("out of luck")
        return 60.0

    samples, failed = interleave({"good": lambda: 60.0, "bad": breaks}, HandClock(), QUICK)
    assert len(samples["good"].device_ms) == 4 and "bad" not in samples
    assert failed == {"bad": "RuntimeError: out of luck"}


def test_the_result_has_every_figure(monkeypatch):
    monkeypatch.setattr(benchmark, "clock_for", lambda device, flush: HandClock())
    result = run(
        {"eager": lambda: 60.0, "ours": lambda: 20.0},
        QUICK,
        CPU,
        batch_size=8,
        compile_times={"ours": CompileTime(2.5, 0.5)},
        held_bytes={"ours": 4096},
        details={"ours": "a variant"},
        failures={"inductor": "RuntimeError: no compiler"},
    )
    eager, ours, inductor = result.engines
    assert (ours.latency.median_ms, ours.wall.median_ms, ours.items_per_second) == (20.0, 20.5, 400.0)
    assert (ours.speedup.value, ours.speedup.low, ours.speedup.high) == (3.0, 3.0, 3.0) and eager.speedup is None
    assert (ours.compile_time.cold_seconds, ours.detail, ours.memory.held_bytes) == (2.5, "a variant", 4096)
    assert inductor.failure == "RuntimeError: no compiler" and inductor.latency is None
    assert (result.noise.value, result.rounds, result.engine("ours")) == (1.0, 4, ours)
    assert result.before.logical_cpus >= 1 and result.before.torch_threads == torch.get_num_threads()
    json.dumps(result.to_dict(), allow_nan=False)


def test_noise_that_is_not_chance_is_told(monkeypatch):
    class Biased(HandClock):
        def time(self, engine, calls):
            self.order.append(engine)
            # The baseline is timed twice a round; the second time takes a tenth longer.
            return (60.0, 60.0) if len(self.order) % 2 else (66.0, 66.0)

    monkeypatch.setattr(benchmark, "clock_for", lambda device, flush: Biased())
    result = run({"eager": lambda: None}, QUICK, CPU)
    assert result.noise.value == pytest.approx(60 / 66)
    assert "differences of 9.1 % and less mean nothing" in result.notes[0]


def test_peak_memory_is_what_a_call_touches():
    size = 64 << 20
    use = measure_memory(lambda: torch.ones(size, dtype=torch.uint8), CPU, held_bytes=1 << 20)
    assert "VmHWM" in use.method
    assert use.call_bytes == pytest.approx(size, rel=0.1)
    assert use.peak_bytes == use.call_bytes + (1 << 20)


def test_the_clock_fits_the_device():
    assert isinstance(clock_for(CPU), WallClock)
    device_ms, wall_ms = WallClock().time(lambda: None, 10)
    assert device_ms == wall_ms > 0
    assert CudaClock.name == "cuda_events"


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: BenchmarkConfig(min_rounds=0), "benchmark.min_rounds"),
        (lambda: BenchmarkConfig(min_seconds=9, max_seconds=1), "benchmark.max_seconds"),
        (lambda: BenchmarkConfig(confidence=1.0), "benchmark.confidence"),
        (lambda: EngineConfig(peers=["eager", "inducter"]), "engine.peers"),
        (lambda: EngineConfig(peers=["inductor"]), "engine.baseline"),
        (lambda: EngineConfig(best_variants_cpu=["frozen"]), "engine.best_variants_cpu"),
    ],
)
def test_config_errors_name_the_key(make, key):
    with pytest.raises(ConfigError) as raised:
        make()
    assert raised.value.key == key
