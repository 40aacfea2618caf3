"""Bars of the report, as inline SVG whose colours the page's style sheet gives, so that they follow light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pipeline.report.page import Html

_WIDTH, _ROW, _BAR = 520, 30, 16
_NAMES, _LABELS = 116, 140


@dataclass(frozen=True)
class Bar:
    """A bar from 0 to `value` with a whisker from `low` to `high`; `ours` is drawn in the leading colour."""

    name: str
    value: float
    low: float
    high: float
    label: str
    ours: bool = False


def bars(
    caption: str, items: Sequence[Bar], mark: float | None = None, band: tuple[float, float] | None = None
) -> Html:
    """Horizontal bars in one scale that starts at 0.

    mark   a value at which a line is drawn across all bars (1 for ratios)
    band   a range that is shaded behind them (what the noise of the measurement covers)
    """
    height = _ROW * len(items) + 8
    room = _WIDTH - _NAMES - _LABELS
    largest = max([item.high for item in items] + ([mark] if mark is not None else []) + [1e-12])

    def at(value: float) -> float:
        return _NAMES + room * min(value, largest) / largest

    parts = []
    if band is not None:
        parts.append(
            f'<rect class="noise" x="{at(band[0]):.1f}" y="0" width="{max(1.0, at(band[1]) - at(band[0])):.1f}" '
            f'height="{height}"/>'
        )
    for row, item in enumerate(items):
        top = 4 + row * _ROW + (_ROW - _BAR) / 2
        middle = top + _BAR / 2
        parts.append(f'<text x="{_NAMES - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(item.name)}</text>')
        parts.append(
            f'<rect class="{"ours" if item.ours else "peer"}" x="{_NAMES}" y="{top:.1f}" '
            f'width="{at(item.value) - _NAMES:.1f}" height="{_BAR}" rx="3"/>'
        )
        if item.high > item.low:
            low, high = at(item.low), at(item.high)
            for x1, y1, x2, y2 in (
                (low, middle, high, middle),
                (low, middle - 4, low, middle + 4),
                (high, middle - 4, high, middle + 4),
            ):
                parts.append(f'<line class="whisker" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
        label_at = at(max(item.value, item.high)) + 8
        parts.append(f'<text class="soft" x="{label_at:.1f}" y="{middle + 4:.1f}">{escape(item.label)}</text>')
    if mark is not None:
        parts.append(f'<line class="axis" x1="{at(mark):.1f}" y1="0" x2="{at(mark):.1f}" y2="{height}"/>')
    picture = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(caption)}">{"".join(parts)}</svg>'
    return Html(f"<figure><figcaption>{escape(caption)}</figcaption>{picture}</figure>")
