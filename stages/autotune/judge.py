"""Contests between the library's steps and one kernel, decided by timing both as they will run.

Comes in: `Contest`s from fusion. Goes out: a `Verdict` for each. Every timing is kept in the database, under the hash
of the template kernel and the digest of the library's side: a contest is fought once per device and set of versions.

Both sides run in a CUDA graph, over many copies of the constants in turn: a weight comes from memory when its layer is
reached, not from L2, as in a program that reads many of them; what was just computed is in L2, as it is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from stages.autotune.config import AutotuneConfig
from stages.autotune.database import Database
from stages.autotune.products import GpuFacts, candidates
from stages.autotune.timing import Timing, sample, time_in_turn
from stages.ir.contest import Contest, Verdict
from stages.ir.expr import Expr, Load, walk
from stages.ir.kernel import Kernel
from stages.ir.matmul import matmul_of
from stages.ir.program import Extern, Launch, Step, TensorRef
from stages.ir.schedule import Schedule

Build = Callable[[Sequence[tuple[Kernel, Schedule]]], Sequence[Any]]
Default = Callable[[Kernel, torch.device], Schedule]
Measure = Callable[[Sequence[Callable[[], None]]], list[Timing]]
Run = Callable[[], None]
Built = Mapping[tuple[str, Schedule | None], Any]

# Copies of the constants take this many bytes together: twice the L2 of an H200, or at most so many copies.
COLD_BYTES = 120 << 20
MOST_COPIES = 64


def judge(
    contests: Sequence[Contest],
    config: AutotuneConfig,
    build: Build,
    database: Database,
    default: Default,
    device: torch.device,
    gpu: GpuFacts | None = None,
    measure: Measure | None = None,
    measuring: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Verdict]:
    """A verdict for each contest: the template where its best schedule beats the library by `config.margin`.

    build, default   codegen's builder and its schedule of a kernel that was not tuned
    gpu              what the cost model knows of the GPU; None: asked of `device`, where that is one
    measure          seconds of each of several runs; None: by device events
    measuring        the context that a contest is timed in: it keeps others from timing the device meanwhile
    """
    facts = gpu or (gpu_facts(device) if device.type == "cuda" else None)
    court = _Court(config, build, database, default, device, measure or _timer(config, device), measuring)
    wanted = {contest.key: court.wanted(contest, facts) for contest in contests}
    fresh = {contest.key: contest for contest in contests if court.unknown(contest, wanted[contest.key])}
    court.time(fresh, wanted)
    return [court.verdict(contest, wanted[contest.key]) for contest in contests]


def gpu_facts(device: torch.device) -> GpuFacts:
    """The facts that a device tells; the rates stay those of the H200, since only their ratio ranks candidates."""
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_block_optin", GpuFacts.shared)
    return GpuFacts(units=properties.multi_processor_count, shared=shared, pdl=properties.major >= 9)


def _timer(config: AutotuneConfig, device: torch.device) -> Measure:
    return lambda runs: time_in_turn(runs, device, config.milliseconds, config.rounds)


class _Court:
    def __init__(
        self,
        config: AutotuneConfig,
        build: Build,
        database: Database,
        default: Default,
        device: torch.device,
        measure: Measure,
        measuring: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.config, self.build, self.database, self.default = config, build, database, default
        self.device, self.measure, self.measuring = device, measure, measuring

    def wanted(self, contest: Contest, gpu: GpuFacts | None) -> list[Schedule]:
        """The schedules of the template that are timed; on the CPU a product is a row kernel, of the default one."""
        kernel = contest.template.kernel
        if gpu is None:
            return [self.default(kernel, self.device)]
        product = matmul_of(kernel)
        assert product is not None, "fusion sets up contests of matrix products"
        found = candidates(kernel, product, self.config.products, gpu)
        if not self.reads_constant(contest, product.second):
            found = [schedule for schedule in found if not schedule.prefetch]
        return found[: self.config.product_trials]

    @staticmethod
    def reads_constant(contest: Contest, operand: Expr) -> bool:
        """Whether an operand lies in memory before the step before has ended."""
        buffers = dict(zip(contest.template.kernel.buffers, contest.template.buffers, strict=True))
        reads = [contest.buffers[buffers[node.buffer]] for node in walk(operand) if isinstance(node, Load)]
        return all(spec.role in ("constant", "weight") for spec in reads)

    def unknown(self, contest: Contest, wanted: Sequence[Schedule]) -> bool:
        """Whether a timing is missing. One that could not be taken is kept as infinite."""
        seen = self.database.lookup(f"template {contest.key}")
        return not all(schedule in seen for schedule in wanted) or not self.database.lookup(f"library {contest.key}")

    # ---- timing ----

    def time(self, contests: Mapping[str, Contest], wanted: Mapping[str, Sequence[Schedule]]) -> None:
        """Build all that the contests need at once, then time each contest's sides in turn, and keep the timings."""
        work = [(contest.template.kernel, schedule) for key, contest in contests.items() for schedule in wanted[key]]
        work += [(step.kernel, self.schedule(step)) for contest in contests.values() for step in launches(contest)]
        built = self.built(list(dict.fromkeys(work)))
        for key, contest in contests.items():
            able = [schedule for schedule in wanted[key] if (contest.template.kernel.hash, schedule) in built]
            memory = Memory(contest, self.device)
            runs = [memory.run([replace(contest.template, schedule=schedule)], built) for schedule in able]
            runs.append(memory.run([self.scheduled(step) for step in contest.library], built))
            with self.measuring():
                *timings, library = (_per_copy(timing, memory.copies) for timing in self.measure(runs))
            never = Timing(math.inf, math.inf, math.inf)
            self.database.record(f"template {key}", {**dict.fromkeys(wanted[key], never), **dict(zip(able, timings))})
            self.database.record(f"library {key}", {Schedule(): library})

    def scheduled(self, step: Step) -> Step:
        return replace(step, schedule=self.schedule(step)) if isinstance(step, Launch) else step

    def schedule(self, launch: Launch) -> Schedule:
        """What a kernel beside the library runs under: the best that is known."""
        known = self.database.lookup(launch.kernel.hash)
        if known:
            return min(known, key=lambda schedule: known[schedule].seconds)
        return self.default(launch.kernel, self.device)

    def built(self, work: Sequence[tuple[Kernel, Schedule]]) -> Built:
        """The kernels by hash and schedule, without those that the device has no room for or that spill."""
        try:
            found = list(zip(work, self.build(work), strict=True)) if work else []
        except Exception:
            # One of them is refused: each is built alone (the others come from the cache) to find out which.
            found = [((kernel, schedule), made) for kernel, schedule in work for made in self.alone(kernel, schedule)]
        fit = [(pair, made) for pair, made in found if not (pair[1].tile_m and made.resources.get("spills"))]
        return {(kernel.hash, schedule): made for (kernel, schedule), made in fit}

    def alone(self, kernel: Kernel, schedule: Schedule) -> Sequence[Any]:
        try:
            return self.build([(kernel, schedule)])
        except Exception:
            if not schedule.tile_m:
                raise
            return []

    # ---- deciding ----

    def verdict(self, contest: Contest, wanted: Sequence[Schedule]) -> Verdict:
        (library,) = self.database.lookup(f"library {contest.key}").values()
        seen = self.database.lookup(f"template {contest.key}")
        timings = {schedule: seen[schedule].seconds for schedule in wanted if schedule in seen}
        if not timings or min(timings.values()) == math.inf:
            return Verdict(None, "no schedule of the space runs on this device")
        best = min(timings, key=lambda schedule: timings[schedule])
        times = f"{1e6 * timings[best]:.2f} µs as one kernel, {1e6 * library.seconds:.2f} µs as {len(contest.library)}"
        won = timings[best] < library.seconds * (1 - self.config.margin)
        return Verdict(best if won else None, times)


def launches(contest: Contest) -> list[Launch]:
    """The kernels of ours among the library's steps."""
    return [step for step in contest.library if isinstance(step, Launch)]


def _per_copy(timing: Timing, copies: int) -> Timing:
    return Timing(timing.seconds / copies, timing.fastest / copies, timing.slowest / copies)


class Memory:
    """The buffers of a contest filled with noise, those of constants several times over."""

    def __init__(self, contest: Contest, device: torch.device) -> None:
        specs = contest.buffers.values()
        cold = [spec for spec in specs if spec.role in ("constant", "weight")]
        size = sum(spec.nbytes for spec in cold)
        self.copies = min(MOST_COPIES, max(2, math.ceil(COLD_BYTES / size))) if size else 1
        generator = torch.Generator(device=device).manual_seed(0)
        shared = {spec.name: sample(spec.dtype, spec.size, generator) for spec in specs}
        self.sets = [dict(shared)]
        for _ in range(self.copies - 1):
            self.sets.append({**shared, **{spec.name: shared[spec.name].clone() for spec in cold}})

    def run(self, steps: Sequence[Step], built: Built) -> Run:
        """`steps`, launches under their schedules, on each set of buffers in turn, as one thing to call."""
        calls: list[Run] = []
        for tensors in self.sets:
            for step in steps:
                if isinstance(step, Launch):
                    calls.append(built[step.kernel.hash, step.schedule].bind([tensors[name] for name in step.buffers]))
                else:
                    calls.append(_call(step, tensors))

        def run() -> None:
            for call in calls:
                call()

        return run


def _call(step: Extern, tensors: Mapping[str, torch.Tensor]) -> Run:
    """An operation of the library on `tensors`, into its place where it has an out-variant."""

    def view(value: Any) -> Any:
        if isinstance(value, TensorRef):
            found = tensors[value.buffer]
            found = found if value.dtype is None else found.view(value.dtype)
            return torch.as_strided(found, value.shape, value.strides, value.offset)
        if isinstance(value, (tuple, list)):
            return type(value)(map(view, value))
        return {name: view(item) for name, item in value.items()} if isinstance(value, dict) else value

    args, kwargs = view(step.args), view(step.kwargs)
    if step.out:
        names = [argument.name for argument in step.target._schema.arguments if argument.is_out]  # type: ignore[attr-defined]
        kwargs |= dict(zip(names, view(step.outputs), strict=True))
    return lambda: step.target(*args, **kwargs)
