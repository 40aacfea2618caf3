"""`report.html`: one file, no network. Speed, validation, the program, its roofline and memory plan, the setting."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.report import page, words
from pipeline.report.charts import Bar, bars
from pipeline.report.page import Cell, Html, section, table, tag
from pipeline.report.record import OURS, ProgramRecord, RunRecord, StepRecord, flatten
from pipeline.report.terminal import notes_of
from stages.benchmark.result import Benchmark, EngineResult
from stages.benchmark.roofline import Ceilings
from stages.validate.result import OutputCheck, Validation

_SVG_NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'


def write_html(record: RunRecord, folder: Path) -> Path:
    """Write `report.html` into `folder`."""
    path = folder / "report.html"
    path.write_text(render_html(record), encoding="utf-8")
    return path


def render_html(record: RunRecord) -> str:
    """The page as text. A run whose validation failed shows no times."""
    return page.document(f"{record.name} – torchweld", _sections(record))


def _sections(record: RunRecord) -> Iterator[Cell]:
    benchmark = record.benchmark_to_show
    yield _header(record, benchmark)
    if benchmark is not None:
        yield _speed(benchmark)
    if record.validation is not None:
        yield _validation(record.validation)
    for program in record.programs:
        yield _program(program, timed=record.status != "failed")
        if record.status != "failed" and any(step.median_ms is not None for step in program.steps):
            yield _roofline(program, None if benchmark is None else benchmark.ceilings)
        if program.plan is not None:
            yield _memory_plan(program)
    if notes := notes_of(record):
        yield section("Notes", page.bullets(notes))
    yield _setting(record, benchmark)


def _header(record: RunRecord, benchmark: Benchmark | None) -> Html:
    title = page.join((tag("h1", record.name), tag("span", words.STATUS[record.status], f"status {record.status}")))
    where = " · ".join(part for part in (record.device.get("name", ""), record.started) if part)
    parts: list[Cell] = [tag("div", title, "title"), tag("p", where, "soft")]
    if record.partial:
        parts.append(tag("p", f"This run ended early: {record.partial}", "partial"))
    if record.status == "failed":
        parts.append(tag("p", "The compiled model is not right, so no times are shown.", "failed"))
    parts.append(tag("div", page.join(_facts(record, benchmark)), "facts"))
    if record.command:
        parts.append(tag("pre", record.command))
    return tag("header", page.join(parts))


def _facts(record: RunRecord, benchmark: Benchmark | None) -> Iterator[Html]:
    """The few numbers to see first."""
    ours = next((e for e in benchmark.engines if e.name == OURS), None) if benchmark is not None else None
    if benchmark is not None and ours is not None and ours.latency is not None:
        if ours.speedup is not None:
            yield _fact(
                f"{ours.speedup.value:.2f} ×",
                f"as fast as {benchmark.baseline} [{ours.speedup.low:.2f}, {ours.speedup.high:.2f}]",
                "fact lead",
            )
        yield _fact(f"{words.milliseconds(ours.latency.median_ms)} ms", "median of one call")
    if record.validation is not None and record.validation.error_ratio is not None:
        yield _fact(f"{record.validation.error_ratio:.2f} ×", "eager's error against float64")
    if record.programs:
        launches = sum(program.launches for program in record.programs)
        externs = sum(program.externs for program in record.programs)
        yield _fact(f"{launches} + {externs}", "kernels + torch operators")
        plans = [program.plan for program in record.programs if program.plan is not None]
        if plans:
            yield _fact(words.size(sum(plan.arena_bytes for plan in plans)), "arena for intermediates")


def _fact(value: str, meaning: str, css: str = "fact") -> Html:
    return tag("div", page.join((tag("b", value), tag("span", meaning, "soft small"))), css)


def _speed(benchmark: Benchmark) -> Html:
    timed = [engine for engine in benchmark.engines if engine.latency is not None]
    charts = [bars("Median latency in ms, whiskers from p10 to p90 (shorter is better)", [_time_bar(e) for e in timed])]
    rated = [engine for engine in timed if engine.speedup is not None]
    if rated:
        noise = benchmark.noise
        band = None if noise is None else (min(noise.low, 1 / noise.high), max(noise.high, 1 / noise.low))
        caption = f"Speed against {benchmark.baseline}, {benchmark.confidence:.0%} intervals (longer is better)"
        charts.append(bars(caption, [_ratio_bar(e) for e in rated], mark=1.0, band=band))
    names = [engine.name for engine in benchmark.engines]
    headings = ["engine", "median ms", "p10", "p90", "p99", "wall ms", f"× {benchmark.baseline}", "items/s", "memory"]
    listing = table(
        [*headings, "compile"],
        [_engine_row(engine, benchmark.baseline) for engine in benchmark.engines],
        right=range(1, 10),
        ours=names.index(OURS) if OURS in names else -1,
    )
    return section("Speed", tag("div", page.join(charts), "charts"), listing, *_method(benchmark))


def _time_bar(engine: EngineResult) -> Bar:
    latency = engine.latency
    assert latency is not None
    label = f"{words.milliseconds(latency.median_ms)} ms"
    return Bar(engine.name, latency.median_ms, latency.p10_ms, latency.p90_ms, label, engine.name == OURS)


def _ratio_bar(engine: EngineResult) -> Bar:
    ratio = engine.speedup
    assert ratio is not None
    return Bar(engine.name, ratio.value, ratio.low, ratio.high, words.speedup(ratio), engine.name == OURS)


def _engine_row(engine: EngineResult, baseline: str) -> list[Cell]:
    about = tag("div", engine.failure, "no small") if engine.failure else tag("div", engine.detail, "soft small")
    name = page.join((engine.name, about)) if engine.failure or engine.detail else engine.name
    if engine.latency is None or engine.wall is None:
        return [name, *[words.NONE] * 9]
    times = (engine.latency.median_ms, engine.latency.p10_ms, engine.latency.p90_ms, engine.latency.p99_ms)
    return [
        name,
        *[words.milliseconds(value) for value in (*times, engine.wall.median_ms)],
        "1" if engine.name == baseline else words.speedup(engine.speedup),
        words.NONE if engine.items_per_second is None else words.significant(engine.items_per_second),
        *[
            page.join(lines)
            for lines in (_broken(words.memory(engine), " + "), _broken(words.compile_time(engine), " ("))
        ],
    ]


def _broken(text: str, before: str) -> list[Cell]:
    """`text` in two lines, the second one small and beginning with `before`; in one where it does not occur."""
    first, found, second = text.partition(before)
    return [first, tag("div", before.strip() + " " * (before == " + ") + second, "soft small")] if found else [text]


def _method(benchmark: Benchmark) -> Iterator[Html]:
    """How the figures were taken, in a sentence or two."""
    clock = "CUDA events around each call on an idle device" if benchmark.clock == "cuda_events" else "Wall time"
    flush = ", L2 cache overwritten before each" if benchmark.flush_l2 else ""
    text = (
        f"{clock}{flush}; {benchmark.rounds} rounds in which every engine is timed once, in turn; batch "
        f"{benchmark.batch_size}. Ratios are of medians, their intervals a bootstrap over rounds."
    )
    if benchmark.noise is not None:
        text += (
            f" {benchmark.baseline} against itself measured {words.speedup(benchmark.noise)}: "
            "the shaded band is what the machine's noise covers."
        )
    yield tag("p", text, "soft small")
    methods = {engine.memory.method for engine in benchmark.engines if engine.memory is not None}
    if methods:
        yield tag("p", f"Memory: {'; '.join(sorted(methods))}.", "soft small")


def _validation(validation: Validation) -> Html:
    parts: list[Cell] = [tag("p", validation.summary, "soft")]
    if validation.reasons:
        parts.append(tag("div", page.bullets(validation.reasons), "failed"))
    if validation.first_wrong_step:
        parts.append(tag("p", validation.first_wrong_step, "failed"))
    if validation.task_metrics:
        metrics = [[name, words.significant(value, 4)] for name, value in validation.task_metrics.items()]
        parts.append(table(("task metric", "value"), metrics, right=[1]))
    headings = (
        "set",
        "output",
        "type",
        "relative error",
        "eager's",
        "allowed",
        "peak error",
        "eager's",
        "allowed",
        "ulp",
        "",
    )
    rows = [_check_row(check) for check in validation.checks]
    parts.append(table(headings, rows, right=(0, *range(3, 10))))
    return section("Validation against float64", *parts)


def _check_row(check: OutputCheck) -> list[Cell]:
    verdict = tag("span", "ok", "yes") if check.passed else tag("span", "wrong", "no")
    about: list[Cell] = [
        "all" if check.input_set is None else str(check.input_set),
        tag("code", check.output),
        f"{check.dtype}{list(check.shape)}",
    ]
    if check.errors is None or check.eager_errors is None:
        exact = (
            "equal"
            if check.mismatches == 0
            else words.NONE
            if check.mismatches is None
            else f"{check.mismatches} differ"
        )
        return [*about, exact, *[words.NONE] * 6, verdict]
    own, eager = check.errors, check.eager_errors
    return [
        *about,
        *map(words.error, (own.relative_error, eager.relative_error, check.relative_limit)),
        *map(words.error, (own.peak_error, eager.peak_error, check.peak_limit)),
        words.significant(own.ulp_error),
        verdict,
    ]


def _program(program: ProgramRecord, timed: bool) -> Html:
    saved = program.traffic_unfused_bytes - program.traffic_bytes
    text = f"{program.launches} kernels and {program.externs} torch operators"
    if program.traffic_unfused_bytes:
        text += (
            f"; device-memory traffic {words.size(program.traffic_bytes)}, "
            f"{words.size(program.traffic_unfused_bytes)} with one kernel an operation ({words.size(saved)} saved)"
        )
    headings = ["#", "step", "source", "why", "moves", "flop"] + (["ms"] if timed else [])
    rows = [_step_row(step, timed) for step in program.steps]
    parts: list[Cell] = [tag("p", text, "soft"), table(headings, rows, right=(0, 4, 5, 6))]
    if program.decisions:
        listed = [
            [
                tag("span", "fused", "yes") if d.fused else "kept apart",
                tag("code", f"{d.producer} → {d.consumer}"),
                d.rule,
                d.reason,
                d.origin,
                words.size(d.bytes_saved) if d.fused else words.NONE,
            ]
            for d in program.decisions
        ]
        fused = sum(decision.fused for decision in program.decisions)
        heading = f"{len(listed)} decisions of fusion: {fused} made, {len(listed) - fused} refused, with reasons"
        columns = ("", "operations", "rule", "reason", "source", "saves")
        parts.append(page.details(heading, table(columns, listed, right=[5])))
    return section(f"Program {program.name}", *parts)


def _step_row(step: StepRecord, timed: bool) -> list[Cell]:
    css = "yes" if step.kind == "launch" else "soft"
    what = page.join((tag("span", "kernel " if step.kind == "launch" else "torch ", css), tag("code", step.label)))
    source = page.join(
        (
            tag("span", " · ".join(filter(None, (step.module, step.origin))), "soft"),
            Html("<br>"),
            tag("code", step.code),
        )
    )
    row: list[Cell] = [
        str(step.index),
        what,
        source,
        tag("span", step.reason, "soft"),
        words.size(step.bytes_moved),
        words.significant(float(step.flop)) if step.flop else words.NONE,
    ]
    return [*row, words.milliseconds(step.median_ms)] if timed else row


def _roofline(program: ProgramRecord, ceilings: Ceilings | None) -> Html:
    """Steps by time, each against the least time that the device's measured ceilings allow."""
    steps = sorted((s for s in program.steps if s.median_ms), key=lambda step: -(step.median_ms or 0.0))
    total = sum(step.median_ms or 0.0 for step in steps)
    rows = []
    for step in steps:
        measured = step.median_ms or 0.0
        row: list[Cell] = [
            str(step.index),
            tag("code", step.label),
            words.milliseconds(measured),
            f"{measured / total:.1%}",
            words.rate(step.bytes_moved / measured * 1e3, "B"),
            words.rate(step.flop / measured * 1e3, "FLOP") if step.flop else words.NONE,
        ]
        if ceilings is not None:
            bound = ceilings.bound_seconds(step.bytes_moved, step.flop, step.dtype) * 1e3
            row += [words.milliseconds(bound), page.join((page.bar(bound / measured), f"{bound / measured:.0%}"))]
        rows.append(row)
    headings = ["#", "step", "ms", "share", "memory", "arithmetic"]
    text = f"Each step timed by itself; together {words.milliseconds(total)} ms."
    if ceilings is not None:
        headings += ["bound ms", "of the roofline"]
        reached = ", ".join(
            f"{name} {words.rate(value, 'FLOP')}" for name, value in ceilings.matmul_flop_per_second.items()
        )
        text += (
            f" The bound is the larger of bytes / copy bandwidth and FLOP / matmul rate, as measured on this device in "
            f"this run: copy {words.rate(ceilings.copy_bytes_per_second, 'B')}; {reached}. More than 100 % means that "
            "data came from a cache."
        )
    return section(
        f"Time against the roofline, {program.name}",
        tag("p", text, "soft small"),
        table(headings, rows, right=(0, 2, 3, 4, 5, 6)),
    )


def _memory_plan(program: ProgramRecord) -> Html:
    plan = program.plan
    assert plan is not None
    over = plan.arena_bytes / plan.lower_bound_bytes - 1 if plan.lower_bound_bytes else 0.0
    text = (
        f"Arena {words.size(plan.arena_bytes)} by strategy {plan.strategy}: {over:.1%} over the lower bound of "
        f"{words.size(plan.lower_bound_bytes)}; {words.size(plan.unshared_bytes)} if no memory were shared."
    )
    parts: list[Cell] = [tag("p", text, "soft")]
    if plan.svg:
        # As an image of its own: its style cannot reach the page, nor the page's style it.
        svg = plan.svg if "xmlns=" in plan.svg else plan.svg.replace("<svg", f"<svg {_SVG_NAMESPACE}", 1)
        data = base64.b64encode(svg.encode()).decode()
        parts.append(Html(f'<div class="plan"><img alt="memory plan" src="data:image/svg+xml;base64,{data}"></div>'))
    return section(f"Memory plan, {program.name}", *parts)


def _setting(record: RunRecord, benchmark: Benchmark | None) -> Html:
    """Device, versions, machine state, stages and config."""
    rows: list[list[Cell]] = [[name, value] for name, value in (*record.device.items(), *record.versions.items())]
    parts: list[Cell] = [table(("", ""), rows)]
    if benchmark is not None:
        before, after = asdict(benchmark.before), asdict(benchmark.after)
        states = [[name, _known(before[name]), _known(after[name])] for name in before if before[name] is not None]
        parts.append(page.details("The machine before and after timing", table(("", "before", "after"), states)))
    if record.stage_seconds:
        stages = [[name, words.seconds(value)] for name, value in record.stage_seconds.items()]
        parts.append(page.details("Seconds by stage", table(("stage", "wall time"), stages, right=[1])))
    if record.config:
        listing = [[tag("code", key), tag("code", str(value))] for key, value in flatten(record.config).items()]
        parts.append(page.details(f"Config {record.config_hash}", table(("key", "value"), listing)))
    return section("Setting", *parts)


def _known(value: Any) -> str:
    return words.NONE if value is None else words.significant(value) if isinstance(value, float) else str(value)
