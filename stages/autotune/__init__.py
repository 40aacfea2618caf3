"""Kernel to Schedule: for each kernel of a program the fastest schedule of the declared space that was found.

Comes in: a program whose launches have no schedule, a service that builds kernels, a database of timings. Goes out: the
program with a schedule in every launch. A kernel whose candidates were all timed before is not timed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from stages.autotune.config import AutotuneConfig
from stages.autotune.database import Database
from stages.autotune.space import CPU, CUDA, DeviceFacts, candidates
from stages.autotune.timing import Timing, sample_buffers, time_in_turn
from stages.ir.kernel import Kernel
from stages.ir.program import Launch, Program
from stages.ir.schedule import Schedule
from stages.ir.words import counted

Build = Callable[[Sequence[tuple[Kernel, Schedule]]], Sequence[Any]]
Default = Callable[[Kernel, torch.device], Schedule]


def run(program: Program, config: AutotuneConfig, build: Build, database: Database, default: Default) -> Program:
    """`program` with schedules.

    build     compiles many (kernel, schedule) pairs at once, as codegen does
    default   the schedule of a kernel that was not tuned, as codegen has it
    """
    device = program.device
    defaults = {launch.kernel.hash: default(launch.kernel, device) for launch in program.launches}
    kernels = {launch.kernel.hash: launch.kernel for launch in program.launches}
    begin, timed, known = time.perf_counter(), 0, 0
    chosen: dict[str, Schedule] = {}
    missing: dict[str, list[Schedule]] = {}
    for digest, kernel in kernels.items():
        wanted = _wanted(kernel, defaults[digest], device.type, config)
        if len(wanted) > 1:
            seen = database.lookup(digest)
            missing[digest] = [schedule for schedule in wanted if schedule not in seen]
            known += not missing[digest]
    fresh = _time(kernels, missing, program.device, config, build)
    for digest, timings in fresh.items():
        timed += len(timings)
        database.record(digest, timings)
    for digest, untuned in defaults.items():
        every = database.lookup(digest) if digest in missing else {}
        chosen[digest] = best(every, untuned, config.margin)
    notes = program.notes
    if missing:
        seconds = time.perf_counter() - begin
        changed = sum(schedule != defaults[digest] for digest, schedule in chosen.items())
        notes += (
            f"autotune: {counted(len(kernels), 'kernel')}, {known} known, {counted(timed, 'candidate')} timed in "
            f"{seconds:.1f} s, {changed} left the default schedule",
        )
    return replace(program, steps=with_schedules(program, chosen), notes=notes)


def with_schedules(program: Program, chosen: dict[str, Schedule]) -> tuple[Any, ...]:
    """The steps of `program`, each launch with the schedule of its kernel's hash."""
    return tuple(
        replace(step, schedule=chosen[step.kernel.hash]) if isinstance(step, Launch) else step for step in program.steps
    )


def best(timings: dict[Schedule, Timing], default: Schedule, margin: float) -> Schedule:
    """The fastest schedule, if it beats the default by more than `margin`; else the default."""
    if not timings or default not in timings:
        return default
    fastest = min(timings, key=lambda schedule: timings[schedule].seconds)
    return fastest if timings[fastest].seconds < timings[default].seconds * (1 - margin) else default


def _wanted(kernel: Kernel, default: Schedule, device: str, config: AutotuneConfig) -> list[Schedule]:
    space = config.space.get(device, {})
    return candidates(kernel, default, device, space, _facts(device))[: config.trials] if space else []


def _facts(device: str) -> DeviceFacts:
    if device == "cpu":
        return replace(CPU, units=torch.get_num_threads())
    return replace(CUDA, units=torch.cuda.get_device_properties(0).multi_processor_count)


def _time(
    kernels: dict[str, Kernel],
    missing: dict[str, list[Schedule]],
    device: torch.device,
    config: AutotuneConfig,
    build: Build,
) -> dict[str, dict[Schedule, Timing]]:
    """Build all the missing candidates at once, then time those of each kernel against each other."""
    work = [(kernels[digest], schedule) for digest, schedules in missing.items() for schedule in schedules]
    if not work:
        return {}
    built = dict(zip(((kernel.hash, schedule) for kernel, schedule in work), build(work), strict=True))
    result: dict[str, dict[Schedule, Timing]] = {}
    for digest, schedules in missing.items():
        if not schedules:
            continue
        tensors = sample_buffers(kernels[digest], device)
        launches = [built[digest, schedule].bind(tensors) for schedule in schedules]
        timings = time_in_turn(launches, device, config.milliseconds, config.rounds)
        result[digest] = dict(zip(schedules, timings))
    return result
