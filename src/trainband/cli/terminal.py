"""The console on which commands print tables and lines for people."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from trainband.runtime.formatting import printable
from trainband.runtime.overrides import override


class PlainConsole(Console):
    """Prints every text as it is: `[red]` and `:smile:` in a name are no markup, and control characters are shown.

    Every text that rich makes of a string, be it a line or a cell of a table, passes through `render_str`.
    """

    @override
    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(printable(text, newline="\n"), **settings)


def console_for_people() -> Console:
    """For tables and lines; a file or a pipe has no width that lines would have to be broken for."""
    width = None if sys.stdout.isatty() else 160
    return PlainConsole(width=width, markup=False, emoji=False, highlight=False)
