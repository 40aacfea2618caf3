"""What fusion did, as text for a person: `explain(program)`."""

from __future__ import annotations

from collections.abc import Iterator

from stages.fusion.cost import program_traffic, step_traffic
from stages.ir.program import Extern, Launch, Program
from stages.ir.words import counted


def explain(program: Program) -> str:
    """Bytes moved, kernels with their operations and source lines, what stayed apart, what torch runs, and why."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    before, after = program.traffic_unfused, program_traffic(program)
    yield f"{counted(len(program.launches), 'kernel')}, {counted(len(program.externs), 'operation')} left to torch"
    yield f"device memory: {before} bytes moved with one kernel an operation, {after} as fused"
    yield from _kernels(program)
    yield from _decisions(program, True, "fusions")
    yield from _decisions(program, False, "left apart")
    yield from _externs(program)
    if program.notes:
        yield from ("", "notes", *(f"  {note}" for note in program.notes))


def _kernels(program: Program) -> Iterator[str]:
    yield from ("", "kernels")
    for step in program.steps:
        if isinstance(step, Launch):
            yield f"  {step.kernel.name}: {step.label} ({step_traffic(step, program.buffers)} bytes)"
            yield from dict.fromkeys(f"    {origin}  {origin.code}".rstrip() for origin in step.origins)


def _decisions(program: Program, fused: bool, title: str) -> Iterator[str]:
    chosen = [decision for decision in program.decisions if decision.fused is fused]
    if chosen:
        yield from ("", title)
    for decision in dict.fromkeys(chosen):
        rule = f" by '{decision.rule}', saves {decision.bytes_saved} bytes" if fused else ""
        yield f"  {decision.producer} -> {decision.consumer}{rule}: {decision.reason}  # {decision.origin}"


def _externs(program: Program) -> Iterator[str]:
    """The operations left to torch; equal ones with their count."""
    found: dict[tuple[str, str, str], int] = {}
    for step in program.steps:
        if isinstance(step, Extern):
            origin = str(step.origins[0]) if step.origins else ""
            key = (str(step.target), step.reason, origin)
            found[key] = found.get(key, 0) + 1
    if found:
        yield from ("", "left to torch")
    for (target, reason, origin), count in found.items():
        times = f" ({count} times)" if count > 1 else ""
        yield f"  {target}{times}: {reason}  # {origin}"
