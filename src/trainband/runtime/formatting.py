"""Text for people: the prefix of trainband's own lines, what strangers wrote, sizes, rates and durations."""

from __future__ import annotations

import math
import re

LINE_PREFIX = "trainband: "
"""Begins every line that trainband itself prints in a task."""

WARNING_PREFIX = LINE_PREFIX + "WARNING"

CONTINUED = "    "
"""Begins every line of what it says but the first."""


_INVISIBLE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters, with which a terminal is told to do something
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # directions, by which a text reads as another
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ufeff\ufff9-\ufffb"  # marks within a text
    "\ud800-\udfff"  # halves of characters, which no encoding has
    "]"
)


def printable(text: str, most: int | None = None, *, newline: str = "\\n") -> str:
    r"""A text that a stranger may have written, as one that only prints: what would do anything else becomes visible.

    An escape sequence in the name of a worker could otherwise clear the terminal of whoever looks at the log, or write
    a line there that nobody said.

    Args:
      text: any.
      most: characters of it; what is longer is cut.
      newline: what becomes of a newline.

    Returns:
      the text with `\x1b`, `\u202e` and the like in it instead of these characters.
    """
    if most is not None and len(text) > most:
        text = f"{text[: most - 1]}…"
    if text.isprintable():
        return text

    def visible(match: re.Match[str]) -> str:
        character = match[0]
        if character == "\n":
            return newline
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _INVISIBLE.sub(visible, text)


def printable_json(text: str) -> str:
    """The same JSON, in which the characters that `printable` replaces stand as JSON's own escapes."""
    return "\n".join(_INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", line) for line in text.split("\n"))


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
