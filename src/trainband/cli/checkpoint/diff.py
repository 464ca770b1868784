"""`trainband checkpoint diff`: compares two checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from trainband.checkpoint import Checkpoint
from trainband.checkpoint.compare import Change, compare
from trainband.cli.checkpoint.common import counted, open_checkpoint, plain_table, type_of
from trainband.cli.terminal import console_for_people

# Not the docstring: click's \b, which keeps line breaks, does not work in a raw docstring.
_DIFF_HELP = """Compare the tensors of two checkpoints, the most changed first.

Exit code 0 if they are the same, 1 if they differ, 2 if they cannot be read. Without a tolerance, the same means
bit for bit; with one, |a - b| <= atol + rtol * |b| everywhere, with NaN equal to NaN. The relative change is the L2
norm of the difference, divided by that of A.

\b
    trainband checkpoint diff DIR/step-000000000100 DIR/step-000000000200
    trainband checkpoint diff DIR --steps 100 200
"""


@click.command(help=_DIFF_HELP, short_help="Compare the tensors of two checkpoints.")
@click.argument("paths", metavar="A B", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(min=0), nargs=2, metavar="N M", help="Two global steps in one DIR.")
@click.option("--params-only", is_flag=True, help="Only params and model state.")
@click.option("--rtol", type=click.FloatRange(min=0), default=0.0, help="Relative tolerance, for every element.")
@click.option("--atol", type=click.FloatRange(min=0), default=0.0, help="Absolute tolerance, for every element.")
def diff(paths: Sequence[Path], steps: tuple[int, int] | None, params_only: bool, rtol: float, atol: float) -> None:
    """The command; `_DIFF_HELP` is its documentation."""
    if len(paths) != (2 if steps is None else 1):
        raise click.UsageError("give two checkpoints, or one DIR and --steps N M.")
    first, second = (
        (open_checkpoint(path, None) for path in paths)
        if steps is None
        else (open_checkpoint(paths[0], n) for n in steps)
    )
    changes = compare(first, second, params_only=params_only, rtol=rtol, atol=atol)
    _show_changes(first, second, changes, console_for_people())
    if not all(change.same for change in changes):
        click.get_current_context().exit(1)


def _show_changes(first: Checkpoint, second: Checkpoint, changes: Sequence[Change], console: Console) -> None:
    for letter, one in (("A", first), ("B", second)):
        console.print(f"{letter}: {one.path} (global step {one.global_step:,})", soft_wrap=True)
    apart = [change for change in changes if not change.comparable]
    if apart:
        table = plain_table("tensor", title="only in one, or with another shape or dtype")
        table.add_column("A", overflow="fold")
        table.add_column("B", overflow="fold")
        for change in apart:
            table.add_row(
                change.tensor, *("-" if one is None else type_of(one) for one in (change.first, change.second))
            )
        console.print(table)
    together = [change for change in changes if change.comparable]
    identical = sum(change.identical for change in together)
    if identical < len(together):
        table = plain_table("tensor", title="in both")
        table.add_column("type", overflow="fold")
        for title in ("largest\ndifference", "relative\nchange"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for change in together:
            numbers = ("", "") if change.identical else (f"{change.largest:.3g}", f"{change.relative:.3g}")
            word = "identical" if change.identical else "within" if change.same else "differs"
            style = "dim" if change.identical else None
            table.add_row(change.tensor, type_of(change.first or change.second), *numbers, word, style=style)
        console.print(table)
    if changes and identical == len(changes):
        console.print(f"bit-identical: {counted(identical, 'tensor')}")
        return
    within = sum(change.same and not change.identical for change in together)
    counts = [
        (len(together) - identical - within, "different"),
        (len(apart), "cannot be compared"),
        (within, "within the tolerance"),
        (identical, "bit-identical"),
    ]
    console.print(
        f"{counted(len(changes), 'tensor')}: " + ", ".join(f"{count:,} {word}" for count, word in counts if count)
    )
