"""The peers: eager and TorchInductor in its several modes, built as a user would build them.

Comes in: names, the model, and `call`, which runs a model-like callable on the benchmark's inputs under the precision's
context. Goes out: a `Peer` each, to call without arguments. Every Inductor peer is compiled from a function of its own,
so that TorchDynamo knows nothing of it from before and forgets it when it is dropped; from an empty cache directory, so
that cold means cold; and with its settings patched only while it compiles. A peer that fails says why and stops nobody.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch

from stages.benchmark.config import BenchmarkConfig, EngineConfig
from stages.benchmark.result import CompileTime
from stages.benchmark.statistics import summarize
from stages.benchmark.timing import Engine, clock_for, interleave

Call = Callable[[Callable[..., Any]], object]
"""Runs a model-like callable on the inputs and gives its result."""

# Of `inductor_best`: enough to tell variants apart that differ by more than the benchmark would show anyway.
_CHOOSING = BenchmarkConfig(min_rounds=7, min_seconds=1.0, max_seconds=20.0, noise_floor=False, memory=False)
_number = itertools.count()

# Tables of Inductor's own autotuning do not belong into our output.
_QUIET = {"autotune_num_choices_displayed": 0, "max_autotune_report_choices_stats": False}


@dataclass(frozen=True)
class Peer:
    """An engine, or why there is none.

    engine        None where it failed
    compile_time  of the model by this peer
    detail        the variant that was chosen, and what the others measured
    held_bytes    CUDA memory that stays reserved for it between calls; None on a CPU, where it cannot be told
    failure       why it failed; empty where it did not
    """

    name: str
    engine: Engine | None
    compile_time: CompileTime = CompileTime()
    detail: str = ""
    held_bytes: int | None = None
    failure: str = ""


def build_peers(
    names: Sequence[str],
    model: Callable[..., Any],
    call: Call,
    device: torch.device,
    config: EngineConfig,
    progress: Callable[[str], None] = lambda message: None,
) -> list[Peer]:
    """One `Peer` for each of `names`, in order.

    model      the eager model, on `device`
    call       runs a model-like callable: `call(model)` is eager itself
    progress   told what is built next
    """
    threads = torch.get_num_threads()
    peers = []
    for name in names:
        progress(f"building the peer {name}")
        before = _reserved(device)
        try:
            peer = _BUILDERS[name](name, model, call, device, config)
            after = _reserved(device)
            if after is not None and before is not None:
                peer = replace(peer, held_bytes=max(0, after - before))
        except Exception as error:
            peer = Peer(name, None, failure=_reason(error))
        torch.set_num_threads(threads)
        peers.append(peer)
    return peers


def _eager(name: str, model: Callable[..., Any], call: Call, device: torch.device, config: EngineConfig) -> Peer:
    return Peer(name, lambda: call(model))


def _eager_cudagraph(
    name: str, model: Callable[..., Any], call: Call, device: torch.device, config: EngineConfig
) -> Peer:
    """Eager's own kernels in one CUDA graph, on inputs at fixed addresses: eager without its launch overhead."""
    if device.type != "cuda":
        return Peer(name, None, failure="CUDA graphs want a CUDA device")
    begin = time.perf_counter()
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):  # libraries allocate their workspaces in the first calls, which a capture may not
            call(model)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    torch._C._cuda_clearCublasWorkspaces()  # so that cuBLAS works in memory of the graph, which nobody else frees
    with torch.cuda.graph(graph):
        result = call(model)
    torch._C._cuda_clearCublasWorkspaces()

    def replay() -> object:
        graph.replay()
        return result

    replay()
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    return Peer(name, replay, CompileTime(cold_seconds=seconds), "inputs and outputs at fixed addresses")


def _inductor(name: str, model: Callable[..., Any], call: Call, device: torch.device, config: EngineConfig) -> Peer:
    return _compile(name, "default", model, call, device, config.warm_compile)


def _inductor_max(name: str, model: Callable[..., Any], call: Call, device: torch.device, config: EngineConfig) -> Peer:
    return _compile(name, "max-autotune+frozen", model, call, device, config.warm_compile)


def _inductor_best(
    name: str, model: Callable[..., Any], call: Call, device: torch.device, config: EngineConfig
) -> Peer:
    """Builds every variant of the config, times them in turn, keeps the one of the least median."""
    variants = config.best_variants_cuda if device.type == "cuda" else config.best_variants_cpu
    built: dict[str, Peer] = {}
    told: dict[str, str] = {}
    for variant in variants:
        try:
            built[variant] = _compile(name, variant, model, call, device, config.warm_compile)
        except Exception as error:
            told[variant] = f"{variant} failed ({_reason(error)})"
    engines = {variant: peer.engine for variant, peer in built.items() if peer.engine is not None}
    samples, raised = interleave(engines, clock_for(device), _CHOOSING)
    told |= {variant: f"{variant} failed ({reason})" for variant, reason in raised.items()}
    medians = {variant: summarize(found.device_ms).median_ms for variant, found in samples.items()}
    if not medians:
        return Peer(name, None, failure="; ".join(told.values()))
    told |= {variant: f"{variant} {median:.4g} ms" for variant, median in medians.items()}
    best = min(medians, key=medians.__getitem__)
    others = ", ".join(told[variant] for variant in variants)
    return replace(built[best], detail=f"{built[best].detail} (of {others})")


_BUILDERS: dict[str, Callable[[str, Callable[..., Any], Call, torch.device, EngineConfig], Peer]] = {
    "eager": _eager,
    "eager_cudagraph": _eager_cudagraph,
    "inductor": _inductor,
    "inductor_max": _inductor_max,
    "inductor_best": _inductor_best,
}


def _compile(name: str, variant: str, model: Callable[..., Any], call: Call, device: torch.device, warm: bool) -> Peer:
    """`torch.compile` in the mode and with the weights (frozen or not) that `variant` says.

    Shapes are static, as they are for every engine of the run. Two more calls follow the first one: in modes with
    CUDA graphs they record, and their time is warm-up, not compilation. Raises `RuntimeError` where TorchDynamo left
    the whole model to eager, which it does in silence.
    """
    # Before the clock starts: importing Inductor is no part of compiling a model.
    import torch._inductor.compile_fx
    import torch._inductor.config as inductor_config
    from torch._inductor.utils import clear_caches, fresh_cache

    mode, _, frozen = variant.partition("+")

    def build() -> tuple[Engine, float]:
        begin = time.perf_counter()
        compiled = torch.compile(_function_of_its_own(model), mode=mode, dynamic=False)

        def engine() -> object:
            if device.type == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            return call(compiled)

        engine()
        _wait(device)
        return engine, time.perf_counter() - begin

    with fresh_cache(), inductor_config.patch({"freezing": bool(frozen), **_QUIET}):
        before = _graphs_and_breaks()
        engine, cold = build()
        graphs, breaks = (now - then for now, then in zip(_graphs_and_breaks(), before, strict=True))
        if graphs == 0:
            raise RuntimeError("torch.compile compiled nothing of the model and runs it in eager")
        warm_seconds = None
        if warm:
            clear_caches()  # what this process holds in memory; the files stay
            _, warm_seconds = build()
        for _ in range(2):
            engine()
        _wait(device)
    detail = f"{variant}, {graphs} graphs, {breaks} graph breaks" if breaks else variant
    return Peer(name, engine, CompileTime(cold, warm_seconds), detail)


def _graphs_and_breaks() -> tuple[int, int]:
    """How many graphs TorchDynamo has handed to compilers in this process, and how often it broke one."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"]), sum(counters["graph_break"].values())


def _function_of_its_own(model: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `model`, with a code object of its own.

    TorchDynamo keeps what it compiled with the code object of the frame: two compilations of one model would share a
    list, whose length is limited and whose guards each call walks, and a reset for one would undo the other.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    code = forward.__code__.replace(co_name=f"peer_{next(_number)}")
    return FunctionType(code, forward.__globals__, code.co_name, None, forward.__closure__)


def _reserved(device: torch.device) -> int | None:
    """CUDA memory that cannot be given back: what is live, and the pools of CUDA graphs. None on a CPU."""
    if device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reason(error: Exception) -> str:
    """The kind of an exception and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
