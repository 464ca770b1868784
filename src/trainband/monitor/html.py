"""HTML for notebooks: tables and curves without scripts, stylesheets or external resources."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from trainband.runtime.formatting import printable

WIDTH, HEIGHT = 480, 120
"""Size of a curve, in CSS pixels."""

MOST_POINTS = 480
"""Points drawn per curve; more are thinned, keeping minima and maxima."""

LOG_FROM = 100.0
"""Ratio of the largest to the smallest value from which a curve may have a logarithmic scale."""

_CELL = "text-align:left;padding:1px 14px 1px 0"
_LABEL = "font-size:85%;opacity:.75"


def text(value: object, most: int | None = 500) -> str:
    """Escapes untrusted text as HTML."""
    return escape(printable(str(value), most), quote=True)


def table(rows: Iterable[Sequence[object]], headings: Sequence[str] = ()) -> str:
    """Returns a table; without headings, the first cell of each row is its heading."""
    lines = ['<table style="border-spacing:0">']
    if headings:
        cells = "".join(f'<th scope="col" style="{_CELL}">{text(one)}</th>' for one in headings)
        lines.append(f"<thead><tr>{cells}</tr></thead>")
    lines.append("<tbody>")
    for row in rows:
        first = "" if headings else f'<th scope="row" style="{_CELL}">{text(row[0])}</th>'
        cells = "".join(f'<td style="{_CELL}">{text(one)}</td>' for one in (row if headings else row[1:]))
        lines.append(f"<tr>{first}{cells}</tr>")
    lines.append("</tbody></table>")
    return "".join(lines)


def block(title: str, *parts: str) -> str:
    """Returns a titled block of HTML parts."""
    return f"<div><strong>{text(title)}</strong>{''.join(parts)}</div>"


def curve(name: str, steps: Sequence[float], values: Sequence[float], *, log: bool = False) -> str:
    """Returns one series as a small SVG in the colour of the surrounding text; empty without two finite values."""
    points = [(float(x), float(y)) for x, y in zip(steps, values, strict=True) if math.isfinite(y)]
    if len(points) < 2:
        return ""
    low, high = min(y for _, y in points), max(y for _, y in points)
    left, right = points[0][0], points[-1][0]
    is_log = log and low > 0 and high / low >= LOG_FROM
    scale: Callable[[float], float] = math.log if is_log else float
    across, up = (right - left) or 1.0, (scale(high) - scale(low)) or 1.0
    drawn = " ".join(
        f"{4 + (x - left) / across * (WIDTH - 8):.1f},{HEIGHT - 4 - (scale(y) - scale(low)) / up * (HEIGHT - 8):.1f}"
        for x, y in _thinned(points)
    )
    said = f"{name}: from {points[0][1]:.4g} to {points[-1][1]:.4g}, between {low:.4g} and {high:.4g}, "
    said += f"global steps {left:,.0f} to {right:,.0f}{', logarithmic scale' if is_log else ''}"
    return (
        f'<figure style="margin:8px 0"><svg role="img" aria-label="{text(said)}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" style="max-width:100%;height:auto"><polyline fill="none" '
        f'stroke="currentColor" stroke-width="1.5" points="{drawn}"/></svg>'
        f'<figcaption style="{_LABEL}">{text(said)}</figcaption></figure>'
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns at most `MOST_POINTS`: the minimum and maximum of each stretch, in order."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = -(-len(points) // (MOST_POINTS // 2))
    found: list[tuple[float, float]] = []
    for i in range(0, len(points), size):
        stretch = points[i : i + size]
        ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        found.extend(sorted(ends))
    return found
