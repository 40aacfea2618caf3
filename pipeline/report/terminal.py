"""The report in the terminal: a table that a person can paste, then the verdict and the notes."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.report import words
from pipeline.report.record import OURS, RunRecord
from stages.benchmark.result import Benchmark
from stages.ir.words import counted

_SHOWN_REASONS = 8
_STYLE = {"passed": "bold green", "failed": "bold red", "partial": "bold yellow", "unvalidated": "bold yellow"}


def print_report(record: RunRecord, console: Console | None = None) -> None:
    """Print `render(record)`; to standard output by default."""
    (console or Console(highlight=False)).print(render(record))


def render(record: RunRecord) -> RenderableType:
    """The whole report. A run whose validation failed shows no times."""
    parts: list[RenderableType] = []
    benchmark = record.benchmark_to_show
    if benchmark is not None:
        parts += [_engines(record, benchmark), _how(benchmark)]
    parts.append(_verdict(record))
    for program in record.programs:
        counts = f"{counted(program.launches, 'kernel')}, {counted(program.externs, 'torch operator')}"
        parts.append(_line("program", f"{program.name}: {counts}"))
        if program.plan is not None:
            plan, sizes = program.plan, words.size
            bounds = f"lower bound {sizes(plan.lower_bound_bytes)}, unshared {sizes(plan.unshared_bytes)}"
            parts.append(_line("arena", f"{sizes(plan.arena_bytes)} ({plan.strategy}; {bounds})"))
    if record.partial:
        parts.append(_line("partial", record.partial))
    parts += [_line("note", note) for note in notes_of(record)]
    return Group(*parts)


def notes_of(record: RunRecord) -> list[str]:
    """Every note of the run, each once, in order."""
    notes = list(record.notes)
    for program in record.programs:
        notes += program.notes
    if record.validation is not None:
        notes += record.validation.notes
    benchmark = record.benchmark_to_show
    if benchmark is not None:
        notes += benchmark.notes
    return list(dict.fromkeys(notes))


def _engines(record: RunRecord, benchmark: Benchmark) -> Table:
    title = f"{record.name} on {record.device.get('name', record.device.get('kind', 'this machine'))}"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.MARKDOWN)
    table.add_column("engine")
    for heading in ("median ms", "p50/p90/p99", f"× {benchmark.baseline}", "error", "memory", "compile"):
        table.add_column(heading, justify="right")
    ratio = record.validation.error_ratio if record.validation is not None else None
    for engine in benchmark.engines:
        if engine.latency is None:
            table.add_row(engine.name, "failed", "", "", "", "", "", style="dim")
            continue
        latency = engine.latency
        error = f"{ratio:.2f} × eager" if engine.name == OURS and ratio is not None else words.NONE
        table.add_row(
            engine.name,
            words.milliseconds(latency.median_ms),
            "/".join(words.milliseconds(value) for value in (latency.median_ms, latency.p90_ms, latency.p99_ms)),
            "1" if engine.name == benchmark.baseline else words.speedup(engine.speedup),
            error,
            words.memory(engine),
            words.compile_time(engine),
            style="bold" if engine.name == OURS else "",
        )
    return table


def _how(benchmark: Benchmark) -> Group:
    """How the table was measured, and what became of engines without figures."""
    clock = "device time by CUDA events" if benchmark.clock == "cuda_events" else "wall time"
    lines = [
        _line(
            "measured",
            f"{clock}, {benchmark.rounds} rounds, engines in turn, batch {benchmark.batch_size}; "
            f"intervals {benchmark.confidence:.0%}",
        ),
    ]
    if benchmark.noise is not None:
        lines.append(_line("noise", f"{benchmark.baseline} against itself: {words.speedup(benchmark.noise)}"))
    for engine in benchmark.engines:
        if engine.failure:
            lines.append(_line("failed", f"{engine.name}: {engine.failure}"))
        elif engine.detail:
            lines.append(_line("engine", f"{engine.name}: {engine.detail}"))
    return Group(*lines)


def _verdict(record: RunRecord) -> Group:
    status = record.status
    lines: list[RenderableType] = [Text(f"validation: {words.STATUS[status]}", style=_STYLE[status])]
    if record.validation is not None:
        lines.append(_line("checked", record.validation.summary))
        reasons = record.validation.reasons
        lines += [_line("reason", reason) for reason in reasons[:_SHOWN_REASONS]]
        if len(reasons) > _SHOWN_REASONS:
            lines.append(_line("reason", f"and {len(reasons) - _SHOWN_REASONS} more, in results.json"))
        if record.validation.first_wrong_step:
            lines.append(_line("step", record.validation.first_wrong_step))
        for name, value in record.validation.task_metrics.items():
            lines.append(_line("task", f"{name} {words.significant(value, 4)}"))
    return Group(*lines)


def _line(label: str, text: str) -> Text:
    return Text.assemble((f"{label + ':':<11}", "dim"), text)
