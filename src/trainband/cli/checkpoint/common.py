"""Shared by the checkpoint commands: choosing a checkpoint, and formatting."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from trainband.checkpoint import Checkpoint, CheckpointDirectory, Piece
from trainband.checkpoint.manifest import MANIFEST_FILE
from trainband.errors import CheckpointError, YourError
from trainband.runtime.formatting import printable, printable_json

directory_argument = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
step_option = click.option(
    "--step", type=click.IntRange(min=0), help="The global step of the checkpoint.  [default: newest]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")


def home_of(directory: Path) -> CheckpointDirectory:
    if not directory.is_dir():
        raise YourError(f"there is no directory {directory}.")
    return CheckpointDirectory(directory, lambda line: click.echo(printable(line), err=True))


def is_one(path: Path) -> bool:
    """Whether a path is one checkpoint, not a directory of them."""
    return path.is_dir() and ((path / MANIFEST_FILE).exists() or path.name.lstrip(".").startswith("step-"))


def path_of(directory: Path, step: int | None) -> Path:
    """The path of the checkpoint of a step, or of the newest, damaged or not."""
    if is_one(directory):
        if step is not None:
            raise YourError(f"{directory} is one checkpoint; --step is for a directory of several.")
        return directory
    home = home_of(directory)
    steps = home.steps()
    if not steps:
        raise CheckpointError(f"there is no checkpoint in {directory}.")
    if step is not None and step not in steps:
        near = sorted(sorted(steps, key=lambda one: abs(one - step))[:5])
        raise CheckpointError(
            f"there is no checkpoint of global step {step:,} in {directory}; "
            f"{'it has' if len(near) == len(steps) else 'the nearest are'} {', '.join(map(str, near))}."
        )
    return home.path_of(steps[-1] if step is None else step)


def open_checkpoint(directory: Path, step: int | None) -> Checkpoint:
    """The checkpoint of a step, or the newest that is not damaged.

    Raises:
      YourError, CheckpointError: there is no such checkpoint.
    """
    path = path_of(directory, step)
    if step is not None or path == directory:
        return Checkpoint.open(path)
    newest = home_of(directory).newest()
    if newest is None:
        raise CheckpointError(f"there is no checkpoint in {directory} that is not damaged.")
    return newest


def print_json(value: Any) -> None:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()  # NaN becomes null
    click.echo(printable_json(text))


def plain_table(*left: str, title: str | None = None, right: str = "") -> Table:
    """A table that is readable on a terminal of 80 columns: no lines, and only the longest texts fold."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, header_style="dim", padding=(0, 2, 0, 0)
    )
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right.split():
        table.add_column(name, justify="right", no_wrap=True)
    return table


def type_of(piece: Piece | None) -> str:
    return "" if piece is None else f"{piece.dtype}[{','.join(map(str, piece.shape))}]"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def local_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def age_of(seconds: float) -> str:
    """An age in one unit: a column has no room for two."""
    whole = max(0, round(seconds))
    for unit, length, below in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 48 * 3600)):
        if whole < below:
            return f"{whole // length} {unit}"
    return f"{whole // 86400} days"
