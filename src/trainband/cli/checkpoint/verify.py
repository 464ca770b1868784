"""`trainband checkpoint verify`: compares every byte with its checksum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.padding import Padding

from trainband.checkpoint import Checkpoint, Part, PartReader, Stored
from trainband.checkpoint.manifest import MANIFEST_FILE, read_manifest
from trainband.cli.checkpoint.common import directory_argument, home_of, is_one, path_of, step_option
from trainband.cli.terminal import console_for_people
from trainband.errors import DamagedCheckpoint, YourError
from trainband.runtime.formatting import size


@click.command(short_help="Compare every byte with its checksums.")
@directory_argument
@step_option
@click.option("--all", "every", is_flag=True, help="Verify every checkpoint in DIR.")
def verify(directory: Path, step: int | None, every: bool) -> None:
    """Read every byte of a checkpoint and compare it with its checksums; exit code 1 if something is wrong."""
    if every and (step is not None or is_one(directory)):
        raise YourError("--all verifies a whole directory: leave --step out, and give a directory of checkpoints.")
    paths = [path_of(directory, step)]
    if every:
        home = home_of(directory)
        paths = [home.path_of(one) for one in home.steps()]
    console = console_for_people()
    damaged = [path for path in paths if not _verified(path, console)]
    if damaged:
        counted = f"{len(damaged)} of {len(paths)} checkpoints {'is' if len(damaged) == 1 else 'are'}"
        console.print(f"{'the checkpoint is' if len(paths) == 1 else counted} damaged", style="bold red")
        click.get_current_context().exit(1)
    console.print("the checkpoint is sound" if len(paths) == 1 else f"all {len(paths)} checkpoints are sound")


def _verified(path: Path, console: Console) -> bool:
    """Reads one checkpoint and prints whether each file is sound; returns whether all are."""
    console.print(str(path), style="bold", soft_wrap=True)
    damage: DamagedCheckpoint | None = None
    try:
        manifest = Checkpoint.open(path).manifest
    except DamagedCheckpoint as exc:
        damage = exc
        try:  # one missing file does not mean that the others are damaged
            manifest = read_manifest(path / MANIFEST_FILE)
        except (OSError, DamagedCheckpoint):
            console.print(Padding(str(damage), (0, 0, 0, 4)), style="red")
            return False
    found, widest = 0, max((len(part.file) for part in manifest.files), default=0)
    for part in manifest.files:
        wrong = [str(one) for one in _damages(path, part)]
        found += len(wrong)
        word = "damaged" if wrong else "ok"
        console.print(f"  {part.file:<{widest}} {size(part.nbytes):>9}  {word}", style="red" if wrong else None)
        for line in wrong:
            console.print(Padding(line, (0, 0, 0, 4)), style="red")
    if damage is not None and not found:
        console.print(Padding(str(damage), (0, 0, 0, 4)), style="red")
    return damage is None and not found


def _damages(path: Path, part: Part) -> Iterator[DamagedCheckpoint]:
    try:
        with PartReader(path / part.file, part) as reader:
            for stored in part.pieces:
                yield from _damage(reader, stored)
    except DamagedCheckpoint as exc:
        yield exc


def _damage(reader: PartReader, stored: Stored) -> Iterator[DamagedCheckpoint]:
    try:
        reader.verify(stored)
    except DamagedCheckpoint as exc:
        yield exc
