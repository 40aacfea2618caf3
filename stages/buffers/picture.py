"""The arena as a picture. Comes in: a plan. Goes out: an SVG string, with no script and no outside resource.

Steps run from left to right, addresses from bottom to top; a box is a buffer, its title (shown on hover) says which.
The colour says how long it lives, from teal (one step) to red (the whole program). Buffers that share memory in place
lie side by side at one address. A dashed line is the lower bound.
"""

from __future__ import annotations

from html import escape

from stages.ir.program import ArenaPlan

MARGIN_LEFT, MARGIN_BOTTOM, MARGIN_TOP, MARGIN_RIGHT = 84, 44, 36, 16
LINE, TEXT, GROUND = "#8a8f98", "#2b2f36", "#f6f7f9"


def picture(plan: ArenaPlan, width: int = 960, height: int = 480) -> str:
    """`plan` as an SVG of `width` x `height` pixels."""
    inner_width, inner_height = width - MARGIN_LEFT - MARGIN_RIGHT, height - MARGIN_TOP - MARGIN_BOTTOM
    steps = max((last for _, _, last, _, _ in plan.placements), default=0) + 1
    top = max(plan.size, plan.lower_bound, 1)

    def x(step: float) -> float:
        return MARGIN_LEFT + inner_width * step / steps

    def y(address: float) -> float:
        return MARGIN_TOP + inner_height * (1 - address / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{TEXT}" role="img">',
        f"<title>{escape(_summary(plan))}</title>",
        f'<text x="{MARGIN_LEFT}" y="20">{escape(_summary(plan))}</text>',
        f'<rect x="{MARGIN_LEFT}" y="{MARGIN_TOP}" width="{inner_width}" height="{inner_height}" fill="{GROUND}"/>',
    ]
    for name, first, last, offset, nbytes in plan.placements:
        box = (x(first), y(offset + nbytes), x(last + 1) - x(first), y(offset) - y(offset + nbytes))
        parts.append(_box(box, name, f"steps {first} to {last}", offset, nbytes, (last - first) / steps))
    for part in range(5):
        address = top * part / 4
        parts.append(
            f'<line x1="{MARGIN_LEFT - 4}" x2="{MARGIN_LEFT}" y1="{y(address):.1f}" y2="{y(address):.1f}" '
            f'stroke="{LINE}"/><text x="{MARGIN_LEFT - 8}" y="{y(address) + 4:.1f}" text-anchor="end">'
            f"{bytes_text(address)}</text>"
        )
    for step in _ticks(steps):
        parts.append(
            f'<text x="{x(step + 0.5):.1f}" y="{height - MARGIN_BOTTOM + 16}" text-anchor="middle">{step}</text>'
        )
    parts.append(f'<text x="{x(steps / 2):.1f}" y="{height - 8}" text-anchor="middle">step</text>')
    parts.append(
        f'<line x1="{x(0):.1f}" x2="{x(steps):.1f}" y1="{y(plan.lower_bound):.1f}" y2="{y(plan.lower_bound):.1f}" '
        f'stroke="{TEXT}" stroke-dasharray="6 4"><title>lower bound: {bytes_text(plan.lower_bound)}</title></line>'
    )
    return "\n".join([*parts, "</svg>\n"])


def bytes_text(size: float) -> str:
    """`size` bytes for people: `1.50 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def _summary(plan: ArenaPlan) -> str:
    return (
        f"arena {bytes_text(plan.size)} ({plan.strategy}), lower bound {bytes_text(plan.lower_bound)}, "
        f"without sharing {bytes_text(plan.unshared)}"
    )


def _box(box: tuple[float, float, float, float], name: str, steps: str, offset: int, nbytes: int, share: float) -> str:
    """One buffer; its name is written inside where it fits."""
    left, top, width, height = box
    hue = 175 - 170 * share**0.5  # most lives are short: the root spreads them
    parts = [
        f'<g><rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" '
        f'fill="hsl({hue:.0f} 55% 68%)" stroke="white" stroke-width="1"/>',
        f"<title>{escape(name)}: {bytes_text(nbytes)} at byte {offset}, {steps}</title>",
    ]
    if height > 14 and width > 7.5 * len(name):
        middle = f'x="{left + width / 2:.1f}" y="{top + height / 2 + 4:.1f}" text-anchor="middle"'
        parts.append(f"<text {middle}>{escape(name)}</text>")
    return "".join([*parts, "</g>"])


def _ticks(steps: int) -> range:
    """At most a dozen step numbers, at a round distance."""
    distances = (factor * 10**power for power in range(12) for factor in (1, 2, 5))
    return range(0, steps, next(distance for distance in distances if steps <= 12 * distance))
