"""Text for people: the prefix of trainband's own lines, untrusted text, sizes, rates and durations."""

from __future__ import annotations

import json
import math
import re

LINE_PREFIX = "trainband: "
"""Prefix of every line that trainband itself prints in a task."""

WARNING_PREFIX = LINE_PREFIX + "WARNING"

MOST_OF_A_LINE = 500
"""Characters that are shown of another task's text by default."""

CONTINUED = "    "
"""Prefix of every line of a message after the first."""


_UNPRINTED = (
    r"\x00-\x1f\x7f-\x9f"  # control characters, which command a terminal
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # directions, which make a text read as another
    r"\u2028\u2029"  # ends of lines and paragraphs
    # Zero-width characters, which make two texts look alike; except the two joiners, which words and emoji need.
    r"\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f\u3164\uffa0"
    r"\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"  # annotation marks and tags
    r"\ud800-\udfff"  # surrogates, which cannot be encoded
)
_INVISIBLE = re.compile(f"[{_UNPRINTED}]")

PLAIN = f"[^{_UNPRINTED}]"
"""A regular expression for one printable character, for the types of untrusted fields."""


def printable(text: str, most: int | None = None, *, newline: str = "\\n") -> str:
    r"""Makes an untrusted text safe to print: its control characters become visible.

    Otherwise, an escape sequence in the name of a worker could clear the reader's terminal or fake a line of the log.

    Args:
      text: any.
      most: characters to keep; longer texts are cut.
      newline: the replacement of a newline.

    Returns:
      the text with such characters written as `\x1b`, `\u202e` and so on.
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
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return _INVISIBLE.sub(visible, text)


def one_line(text: str, most: int | None = None) -> str:
    """Makes another task's text one printable line, so that it cannot look like lines of others.

    Args:
      text: any.
      most: characters to keep; longer texts are cut.
    """
    if not text.isprintable():
        text = " | ".join(line for line in map(str.strip, text.splitlines()) if line)
    return printable(text, most)


def printable_json(text: str) -> str:
    """Returns the same JSON with the characters that `printable` replaces written as JSON escapes."""
    return "\n".join(_INVISIBLE.sub(lambda match: json.dumps(match[0])[1:-1], line) for line in text.split("\n"))


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
