"""The frame of `report.html`: escaping, tables, and the style sheet for light and dark. Nothing from the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2430; --soft: #5b6675; --line: #dfe3e8; --track: #eceff3;
  --ours: #2f6fdb; --peer: #9aa5b4; --good: #1a7f4b; --bad: #c0362c; --warn: #9a6700; --noise: #2f6fdb22; }
@media (prefers-color-scheme: dark) { :root {
  --page: #11151b; --card: #1a2029; --ink: #e4e8ee; --soft: #97a3b3; --line: #2c3541; --track: #262e39;
  --ours: #6ea2f5; --peer: #66748a; --good: #4cc38a; --bad: #ff7b72; --warn: #d9a62e; --noise: #6ea2f52b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 0 0 4px; }
section, header { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 20px 22px; margin-bottom: 18px; }
p { margin: 6px 0; } .soft { color: var(--soft); } .small { font-size: 13px; }
code, pre, .mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 12.5px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--track); border-radius: 6px; padding: 8px 10px;
  margin: 10px 0 0; }
.title { display: flex; gap: 14px; align-items: center; flex-wrap: wrap; }
.status { font-weight: 700; font-size: 13px; letter-spacing: 0.04em; padding: 3px 12px; border-radius: 999px;
  border: 1.5px solid currentColor; }
.passed, .yes { color: var(--good); } .failed, .no { color: var(--bad); }
.partial, .unvalidated { color: var(--warn); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; margin-top: 16px; }
.fact { border-left: 3px solid var(--line); padding: 2px 0 2px 12px; }
.fact b { display: block; font-size: 21px; font-weight: 650; line-height: 1.25; }
.fact.lead { border-color: var(--ours); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 8px 28px; margin: 14px 0; }
.charts figure { margin: 0; } figcaption { color: var(--soft); font-size: 13px; margin-bottom: 4px; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font-size: 12.5px; }
svg .soft { fill: var(--soft); } svg .ours { fill: var(--ours); } svg .peer { fill: var(--peer); }
svg .whisker { stroke: var(--ink); stroke-width: 1.3; } svg .axis { stroke: var(--soft); stroke-dasharray: 3 3; }
svg .noise { fill: var(--noise); }
.scroll { overflow: auto; max-height: 560px; margin-top: 12px; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 600; position: sticky; top: 0; background: var(--card);
  box-shadow: inset 0 -1px var(--line); white-space: nowrap; }
td, th { padding: 6px 10px; vertical-align: top; } .sortable td:nth-child(2) { min-width: 190px; }
td { border-top: 1px solid var(--line); }
.right { text-align: right; white-space: nowrap; } tr.ours td { font-weight: 650; }
.bar { background: var(--track); border-radius: 3px; height: 8px; width: 110px; display: inline-block;
  margin-right: 8px; }
.bar i { display: block; height: 100%; border-radius: 3px; background: var(--ours); }
.plan { background: #fff; border-radius: 6px; padding: 8px; margin-top: 12px; }
.plan img { width: 100%; display: block; }
th[data-sorts] { cursor: pointer; } a { color: var(--ours); }
svg .front { fill: none; stroke: var(--ours); stroke-width: 1.4; } svg .frame { stroke: var(--line); }
ul { margin: 8px 0; padding-left: 20px; } details { margin-top: 12px; } summary { cursor: pointer; color: var(--soft); }
"""


# Sorts a table by the column whose heading is clicked on, the other way round at the second click. A cell says in
# `data-sort` what it is sorted by; numbers come before text, and empty ones last.
SORT = """
document.querySelectorAll("th[data-sorts]").forEach(heading => heading.addEventListener("click", () => {
  const body = heading.closest("table").tBodies[0], column = heading.cellIndex;
  const down = heading.dataset.sorts === "up" ? -1 : 1;
  heading.dataset.sorts = down === 1 ? "up" : "down";
  const of = row => row.cells[column].dataset.sort;
  [...body.rows].sort((one, other) => {
    const a = of(one), b = of(other);
    if (a === "" || b === "") return (a === "") - (b === "");
    const numbers = Number(a) - Number(b);
    return down * (Number.isNaN(numbers) ? a.localeCompare(b) : numbers);
  }).forEach(row => body.append(row));
}));
"""


@dataclass(frozen=True)
class Html:
    """Text that is HTML already; everything else is escaped where it is put in."""

    text: str


Cell = str | Html


def text_of(value: Cell) -> str:
    return value.text if isinstance(value, Html) else escape(value)


def tag(name: str, content: Cell, css: str = "") -> Html:
    """`<name class=css>content</name>`."""
    attribute = f' class="{css}"' if css else ""
    return Html(f"<{name}{attribute}>{text_of(content)}</{name}>")


def join(parts: Iterable[Cell]) -> Html:
    return Html("".join(text_of(part) for part in parts))


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], right: Iterable[int] = (), ours: int = -1) -> Html:
    """A table in a box that scrolls. `right` are the columns set flush right; `ours` is the row set in bold."""
    flush = set(right)
    head = join(tag("th", heading, "right" if at in flush else "") for at, heading in enumerate(headings))
    body = []
    for number, row in enumerate(rows):
        cells = join(tag("td", cell, "right" if at in flush else "") for at, cell in enumerate(row))
        body.append(tag("tr", cells, "ours" if number == ours else ""))
    inside = join((tag("thead", tag("tr", head)), tag("tbody", join(body))))
    return tag("div", tag("table", inside), "scroll")


def sortable(headings: Sequence[str], rows: Iterable[Sequence[tuple[Cell, float | str]]], right: Iterable[int]) -> Html:
    """As `table`, for a page with the script `SORT`: every cell comes with what it is sorted by."""
    flush = set(right)
    head = "".join(
        f'<th data-sorts=""{_RIGHT if at in flush else ""}>{escape(heading)}</th>'
        for at, heading in enumerate(headings)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-sort="{escape(str(order))}"{_RIGHT if at in flush else ""}>{text_of(cell)}</td>'
            for at, (cell, order) in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return tag("div", Html(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"), "scroll sortable")


_RIGHT = ' class="right"'


def link(target: str, text: str) -> Html:
    return Html(f'<a href="{escape(target)}">{escape(text)}</a>')


def section(heading: str, *parts: Cell) -> Html:
    return tag("section", join((tag("h2", heading), *parts)))


def details(heading: str, content: Cell) -> Html:
    """Folded away until it is clicked on."""
    return tag("details", join((tag("summary", heading), content)))


def bullets(items: Iterable[Cell]) -> Html:
    return tag("ul", join(tag("li", item) for item in items))


def bar(fraction: float) -> Html:
    """A small bar, filled by `fraction` of its width (at most all of it)."""
    return Html(f'<span class="bar"><i style="width:{100 * min(1.0, max(0.0, fraction)):.1f}%"></i></span>')


def document(title: str, parts: Iterable[Cell], script: str = "") -> str:
    """The whole file."""
    end = f"<script>{script}</script>" if script else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body><main>{text_of(join(parts))}</main>{end}</body></html>\n"
    )
