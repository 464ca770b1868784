"""Text for people: the prefix of trainband's own lines, and sizes, rates and durations as people write them."""

from __future__ import annotations

import math

LINE_PREFIX = "trainband: "
"""Begins every line that trainband itself prints in a task."""

WARNING_PREFIX = LINE_PREFIX + "WARNING"


def printable(text: str, most: int = 500, *, keep: str = "") -> str:
    """Formats what came from outside: control characters as escapes, but for those in `keep`; at most so many of it."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    if cut.isprintable():
        return cut
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape", "surrogatepass").decode()
        for one in cut
    )


def size(nbytes: int) -> str:
    """Formats bytes in powers of 1000: `1.5 MB`."""
    if nbytes < 1000:
        return f"{nbytes} B"
    power = min(4, int(math.log10(nbytes) / 3))
    return f"{nbytes / 1000**power:.1f} {['B', 'kB', 'MB', 'GB', 'TB'][power]}"


def rate(per_second: float) -> str:
    """Formats a number per second; below 10, with two significant digits."""
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.2g}"


def duration(seconds: float) -> str:
    """Formats seconds: `42 s`, `3 min 07 s`, `2 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
