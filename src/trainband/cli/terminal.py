"""The console on which commands print tables and lines for people."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from trainband.runtime.formatting import printable
from trainband.runtime.overrides import override


class PlainConsole(Console):
    """Prints text literally: `[red]` and `:smile:` are not markup, and control characters are escaped.

    Every string that rich renders, in a line or in a table's cell, passes through `render_str`.
    """

    @override
    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(printable(text, newline="\n"), **settings)


def console_for_people() -> Console:
    """A console for tables and lines; wide enough not to wrap lines in a file or a pipe."""
    width = None if sys.stdout.isatty() else 160
    return PlainConsole(width=width, markup=False, emoji=False, highlight=False)
