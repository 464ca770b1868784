"""The findings on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainband.cli.doctor.finding import Mark, Section, stopping
from trainband.runtime.formatting import printable

STYLES = {Mark.OK: "green", Mark.INFO: "dim", Mark.MISSING: "yellow", Mark.PROBLEM: "bold red"}
SIGNS = {Mark.OK: "ok", Mark.INFO: "", Mark.MISSING: "missing", Mark.PROBLEM: "problem"}


def show(sections: Sequence[Section], console: Console) -> None:
    """Prints the sections with aligned columns, and the problems that would stop a job."""
    names = [finding.name for section in sections for finding in section.findings]
    width = min(22, max(map(len, names), default=0))
    for section in sections:
        console.print(Text(section.title, style="bold"))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=max(map(len, SIGNS.values())), no_wrap=True)
        table.add_column(width=width, overflow="fold")
        table.add_column(overflow="fold")
        for finding in section.findings:
            text = Text(printable(finding.text))
            if finding.advice:
                text.append(f"\n{printable(finding.advice)}", style="cyan")
            sign = Text(SIGNS[finding.mark], style=STYLES[finding.mark])
            table.add_row(sign, Text(printable(finding.name)), text)
        console.print(Padding(table, (0, 0, 1, 2), expand=False))
    stops = stopping(sections)
    if not stops:
        console.print(Text("Nothing here would stop a job.", style="green"))
        return
    console.print(Text("This would stop a job:", style="bold red"))
    for finding in stops:
        console.print(Padding(Text(printable(f"{finding.name}: {finding.text}")), (0, 0, 0, 2), expand=False))
