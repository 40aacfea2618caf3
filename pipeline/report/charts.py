"""Bars and scatter plots, as inline SVG whose colours the page's style sheet gives: they follow light and dark."""

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
    caption: str,
    items: Sequence[Bar],
    mark: float | None = None,
    band: tuple[float, float] | None = None,
    names: int = _NAMES,
) -> Html:
    """Horizontal bars in one scale that starts at 0.

    mark   a value at which a line is drawn across all bars (1 for ratios)
    band   a range that is shaded behind them (what the noise of the measurement covers)
    names  the width of the column of names
    """
    height = _ROW * len(items) + 8
    width = _WIDTH - _NAMES + names
    room = width - names - _LABELS
    largest = max([item.high for item in items] + ([mark] if mark is not None else []) + [1e-12])

    def at(value: float) -> float:
        return names + room * min(value, largest) / largest

    parts = []
    if band is not None:
        parts.append(
            f'<rect class="noise" x="{at(band[0]):.1f}" y="0" width="{max(1.0, at(band[1]) - at(band[0])):.1f}" '
            f'height="{height}"/>'
        )
    for row, item in enumerate(items):
        top = 4 + row * _ROW + (_ROW - _BAR) / 2
        middle = top + _BAR / 2
        parts.append(f'<text x="{names - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(item.name)}</text>')
        parts.append(
            f'<rect class="{"ours" if item.ours else "peer"}" x="{names}" y="{top:.1f}" '
            f'width="{at(item.value) - names:.1f}" height="{_BAR}" rx="3"/>'
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
    picture = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(caption)}">{"".join(parts)}</svg>'
    return Html(f"<figure><figcaption>{escape(caption)}</figcaption>{picture}</figure>")


@dataclass(frozen=True)
class Point:
    """A point of a scatter plot; those of one `group` that are `best` are joined by a line.

    label   what stands beside it; None: its name. The name is seen in any case where the mouse points at it
    """

    name: str
    x: float
    y: float
    group: str
    best: bool
    label: str | None = None


_HEIGHT, _LEFT, _BOTTOM, _EDGE = 300, 64, 44, 14


def scatter(caption: str, x_title: str, y_title: str, points: Sequence[Point]) -> Html:
    """Points on axes from 0, so that distances are to scale; the label of each stands beside it."""
    largest_x = 1.08 * max([point.x for point in points] + [1e-12])
    largest_y = 1.08 * max([point.y for point in points] + [1e-12])

    def at(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (_WIDTH - _LEFT - _EDGE) * x / largest_x
        return across, _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _EDGE) * y / largest_y

    parts = [_axes(x_title, y_title, largest_x, largest_y)]
    for group in dict.fromkeys(point.group for point in points):
        joined = sorted((point.x, point.y) for point in points if point.group == group and point.best)
        corners = " ".join(f"{across:.1f},{up:.1f}" for across, up in (at(x, y) for x, y in joined))
        parts.append(f'<polyline class="front" points="{corners}"/>')
    for point in points:
        across, up = at(point.x, point.y)
        text = escape(point.name)
        tip = f"{text}: {point.x:.4g} {escape(x_title)}, {point.y:.4g} {escape(y_title)}"
        css = "ours" if point.best else "peer"
        parts.append(f'<circle class="{css}" cx="{across:.1f}" cy="{up:.1f}" r="5"><title>{tip}</title></circle>')
        anchor, shift = ("end", -9) if across > _WIDTH * 0.6 else ("start", 9)
        beside = text if point.label is None else escape(point.label)
        parts.append(
            f'<text class="soft" x="{across + shift:.1f}" y="{up - 6:.1f}" text-anchor="{anchor}">{beside}</text>'
        )
    label = f'role="img" aria-label="{escape(caption)}"'
    picture = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" {label}>{"".join(parts)}</svg>'
    return Html(f"<figure><figcaption>{escape(caption)}</figcaption>{picture}</figure>")


def _axes(x_title: str, y_title: str, largest_x: float, largest_y: float) -> str:
    """Both axes, with their titles and the values at their middles and ends."""
    floor, wall = _HEIGHT - _BOTTOM, _WIDTH - _EDGE
    parts = [
        f'<line class="frame" x1="{_LEFT}" y1="{floor}" x2="{wall}" y2="{floor}"/>',
        f'<line class="frame" x1="{_LEFT}" y1="{_EDGE}" x2="{_LEFT}" y2="{floor}"/>',
        f'<text class="soft" x="{(_LEFT + wall) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text class="soft" transform="translate(14 {(_EDGE + floor) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_title)}</text>",
    ]
    for share in (0.0, 0.5, 1.0):
        across, up = _LEFT + (wall - _LEFT) * share, floor - (floor - _EDGE) * share
        parts.append(
            f'<text class="soft" x="{across:.1f}" y="{floor + 17}" text-anchor="middle">{largest_x * share:.3g}</text>'
        )
        parts.append(
            f'<text class="soft" x="{_LEFT - 6}" y="{up + 4:.1f}" text-anchor="end">{largest_y * share:.3g}</text>'
        )
    return "".join(parts)
