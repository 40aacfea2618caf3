"""The table of a suite run, as Markdown and as one HTML file, and its sums.

Comes in: records, in any order. Goes out: text. A model that did not pass shows no times.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from pipeline.models.suite import entries
from pipeline.report import page, words
from pipeline.suite.record import EAGER_FAILS, PASSED, Record

_OURS = "torchweld"
_EMPTY = "all outputs are empty: nothing was compared"


def columns(records: Sequence[Record]) -> list[str]:
    """The headings: those of times only where something was timed."""
    engines = _engines(records)
    times = [*(f"{name} ms" for name in engines), *(f"{name} × eager" for name in engines if name != "eager")]
    return [
        *("model", "family", "precision", "result", "graphs", "breaks (Inductor)", "error × eager's"),
        *("fused + library", *times, "arena", "compile s", "reason"),
    ]


def row(record: Record, engines: Sequence[str]) -> list[str]:
    """One line of the table."""
    passed = record.status == PASSED
    rated = [name for name in engines if name != "eager"]
    return [
        record.name,
        entries()[record.name].family,
        record.precision,
        record.status,
        _number(record.graphs),
        _breaks(record),
        words.NONE if record.error_ratio is None else f"{record.error_ratio:.2f}",
        words.NONE if record.fused is None else f"{record.fused} + {record.library}",
        *(words.milliseconds(record.latency_ms.get(name) if passed else None) for name in engines),
        *(_ratio(record.speedup.get(name) if passed else None) for name in rated),
        words.size(record.memory_bytes.get(_OURS, record.arena_bytes)),
        words.NONE if _OURS not in record.compile_seconds else f"{record.compile_seconds[_OURS]:.1f}",
        "; ".join(filter(None, [record.reason, *record.own_breaks, _EMPTY if record.compared == 0 else ""])),
    ]


def markdown(records: Iterable[Record], title: str, command: str) -> str:
    """The whole table under a heading, with its sums."""
    ordered = _ordered(records)
    engines = _engines(ordered)
    lines = [f"# {title}", "", *_setting(ordered), "", f"    {command}", "", *summary(ordered), ""]
    heads = columns(ordered)
    lines += ["| " + " | ".join(heads) + " |", "|" + "|".join("---" for _ in heads) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row(one, engines)) + " |" for one in ordered]
    return "\n".join(lines) + "\n"


def html(records: Iterable[Record], title: str, command: str) -> str:
    """One file, nothing from the network; what did not pass comes first, and each model links to its own report."""
    ordered = sorted(_ordered(records), key=lambda record: record.status == PASSED)
    engines = _engines(ordered)
    heads = columns(ordered)

    def cells(record: Record) -> list[page.Cell]:
        plain: list[page.Cell] = list(row(record, engines))
        plain[0] = page.Html(f'<a href="../jobs/{escape(str(record.job))}/report.html">{escape(record.name)}</a>')
        plain[3] = page.tag("span", record.status, "yes" if record.status == PASSED else "no")
        return plain

    listing = page.table(heads, [cells(record) for record in ordered], right=range(4, len(heads) - 1))
    head = page.section(title, page.bullets([*_setting(ordered), *summary(ordered)]), page.tag("pre", command))
    return page.document(f"{title} – torchweld", [head, page.section("Models", listing)])


def summary(records: Sequence[Record]) -> list[str]:
    """The sums by precision, a sentence each."""
    lines = []
    for precision in dict.fromkeys(record.precision for record in records):
        part = [record for record in records if record.precision == precision]
        passed = [record for record in part if record.status == PASSED]
        whole = sum(record.captured for record in part)
        states = Counter(record.status for record in part if record.status not in (PASSED, EAGER_FAILS))
        rest = "".join(f", {count} {status}" for status, count in states.items())
        able = [record for record in part if record.status != EAGER_FAILS]
        own = f"{whole} captured with no break that Inductor lacks"
        lines.append(f"{precision}: {len(passed)} of {len(able)} validated{rest}; {own}")
        if len(able) < len(part):
            lines.append(f"{precision}: {len(part) - len(able)} that eager itself does not run")
        for name, mean in geometric_means(passed).items():
            lines.append(f"{precision}: {name} {mean:.2f} × eager, geometric mean")
    return lines


def geometric_means(records: Iterable[Record]) -> dict[str, float]:
    """Of the speed against eager, by engine, over the models for which every engine has one."""
    rated = [record.speedup for record in records if record.speedup]
    names = [name for name in dict.fromkeys(name for ratios in rated for name in ratios)]
    common = [ratios for ratios in rated if all(ratios.get(name, 0) > 0 for name in names)]
    if not common:
        return {}
    return {name: math.exp(sum(math.log(ratios[name]) for ratios in common) / len(common)) for name in names}


def _ordered(records: Iterable[Record]) -> list[Record]:
    place = {name: number for number, name in enumerate(entries())}
    return sorted(records, key=lambda record: (place[record.name], record.precision))


def _setting(records: Sequence[Record]) -> list[str]:
    versions = {name: version for record in records for name, version in record.versions.items()}
    devices = dict.fromkeys(record.device for record in records if record.device)
    return [", ".join(f"{name} {version}" for name, version in versions.items()) + "; " + ", ".join(devices)]


def _engines(records: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record.latency_ms))


def _breaks(record: Record) -> str:
    if not record.breaks:
        return words.NONE if record.graphs is None else "0"
    peer = words.NONE if record.peer_breaks is None else str(len(record.peer_breaks))
    return f"{len(record.breaks)} ({peer})"


def _number(value: int | None) -> str:
    return words.NONE if value is None else str(value)


def _ratio(value: float | None) -> str:
    return words.NONE if value is None else f"{value:.2f}"
