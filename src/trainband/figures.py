"""How trainband speaks to people: what begins its own lines, and figures as people write them."""

from __future__ import annotations

import math

OWN_WORDS = "trainband: "
"""Begins every line that trainband itself prints in a task."""

WARNING = OWN_WORDS + "WARNING"


def size(nbytes: int) -> str:
    """Bytes as people write them, in powers of 1000."""
    if nbytes < 1000:
        return f"{nbytes} B"
    power = min(4, int(math.log10(nbytes) / 3))
    return f"{nbytes / 1000**power:.1f} {['B', 'kB', 'MB', 'GB', 'TB'][power]}"


def rate(per_second: float) -> str:
    """How many a second as people write them: of few, two digits that count."""
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.2g}"


def duration(seconds: float) -> str:
    """Seconds as people write them."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
