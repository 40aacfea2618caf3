"""benchmark: how fast, how much memory, against whom.

Engines are callables by name. `run` times all of them in one run, in turn; `peers.build_peers` builds eager's and
Inductor's. What is timed is the call as it stands: whoever builds an engine puts its contexts into it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from stages.benchmark.conditions import Conditions, load_of, others_between, read_conditions, read_cpu_use
from stages.benchmark.config import BenchmarkConfig, EngineConfig
from stages.benchmark.memory import MemoryUse, measure_memory
from stages.benchmark.result import Benchmark, CompileTime, EngineResult
from stages.benchmark.roofline import Ceilings, measure_ceilings
from stages.benchmark.statistics import Ratio, Summary, ratio_of_medians, summarize
from stages.benchmark.timing import Engine, Samples, clock_for, interleave

__all__ = [
    "Benchmark",
    "BenchmarkConfig",
    "Ceilings",
    "CompileTime",
    "Conditions",
    "Engine",
    "EngineConfig",
    "EngineResult",
    "MemoryUse",
    "Ratio",
    "Summary",
    "run",
]

AGAIN = " (again)"
Measuring = Callable[[], AbstractContextManager[None]]


def run(
    engines: Mapping[str, Engine],
    config: BenchmarkConfig,
    device: torch.device,
    *,
    baseline: str = "eager",
    batch_size: int = 1,
    compile_times: Mapping[str, CompileTime] | None = None,
    held_bytes: Mapping[str, int | None] | None = None,
    details: Mapping[str, str] | None = None,
    failures: Mapping[str, str] | None = None,
    measuring: Measuring = nullcontext,
) -> Benchmark:
    """Time `engines` in turn: A B C A B C ...

    engines         each a call on inputs of its own choice, under its own contexts (`no_grad`, autocast)
    baseline        the engine that ratios are taken against
    batch_size      items that one call handles
    compile_times, held_bytes, details   what builders know, by engine: see `EngineResult` and `MemoryUse`
    failures        engines that could not be built, with the reason: they are in the result, without figures
    measuring       the context that everything is timed in: it keeps others from timing the device meanwhile

    An engine that raises is in the result with its reason; the others go on.
    """
    with measuring():
        return _run(
            engines,
            config,
            device,
            baseline,
            batch_size,
            compile_times or {},
            held_bytes or {},
            details or {},
            failures or {},
        )


def _run(
    engines: Mapping[str, Engine],
    config: BenchmarkConfig,
    device: torch.device,
    baseline: str,
    batch_size: int,
    compile_times: Mapping[str, CompileTime],
    held_bytes: Mapping[str, int | None],
    details: Mapping[str, str],
    failures: Mapping[str, str],
) -> Benchmark:
    begin, before, cpu = time.perf_counter(), read_conditions(device), read_cpu_use()
    clock = clock_for(device, config.flush_l2)
    timed = dict(engines)
    if config.noise_floor and baseline in engines:
        timed[baseline + AGAIN] = engines[baseline]
    samples, raised = interleave(timed, clock, config)
    other_cpus = others_between(cpu, read_cpu_use())
    load = load_of(before, other_cpus)
    broken = {**failures, **raised}
    results = []
    for name in dict.fromkeys((*engines, *broken)):
        if name.endswith(AGAIN):
            continue
        about = EngineResult(
            name,
            compile_time=compile_times.get(name, CompileTime()),
            detail=details.get(name, ""),
            failure=broken.get(name, ""),
        )
        if name in samples:
            speedup = None if name == baseline else _ratio(samples, baseline, name, config)
            memory = measure_memory(engines[name], device, held_bytes.get(name)) if config.memory else None
            about = _with_figures(about, samples[name], speedup, memory, batch_size)
        results.append(about)
    after = read_conditions(device)
    noise = _ratio(samples, baseline, baseline + AGAIN, config)
    ceilings = measure_ceilings(device) if config.roofline else None
    return Benchmark(
        baseline=baseline,
        engines=tuple(results),
        noise=noise,
        rounds=max((len(each.device_ms) for each in samples.values()), default=0),
        seconds=time.perf_counter() - begin,
        batch_size=batch_size,
        clock=clock.name,
        flush_l2=config.flush_l2 and device.type == "cuda",
        confidence=config.confidence,
        before=before,
        after=after,
        ceilings=ceilings,
        other_cpus=other_cpus,
        load=load,
        notes=tuple(_notes(noise, load)),
    )


def _ratio(samples: Mapping[str, Samples], baseline: str, name: str, config: BenchmarkConfig) -> Ratio | None:
    if baseline not in samples or name not in samples:
        return None
    pair = samples[baseline].device_ms, samples[name].device_ms
    return ratio_of_medians(*pair, config.confidence, config.resamples, config.seed)


def _with_figures(
    about: EngineResult, samples: Samples, speedup: Ratio | None, memory: MemoryUse | None, batch_size: int
) -> EngineResult:
    latency = summarize(samples.device_ms)
    return EngineResult(
        name=about.name,
        latency=latency,
        wall=summarize(samples.wall_ms),
        speedup=speedup,
        items_per_second=batch_size / (latency.median_ms / 1e3),
        memory=memory,
        compile_time=about.compile_time,
        calls_per_sample=samples.calls_per_sample,
        samples_ms=tuple(samples.device_ms),
        detail=about.detail,
    )


def _notes(noise: Ratio | None, load: str) -> list[str]:
    """What makes the figures less sure than they look."""
    notes = []
    if noise is not None and noise.clear:
        notes.append(
            f"the baseline against itself measured {noise.value:.3f}, which is not 1 by chance: differences of "
            f"{abs(noise.value - 1) * 100:.1f} % and less mean nothing in this run"
        )
    if load:
        notes.append(f"measured under load: {load}; compare these figures with care")
    return notes
