"""`trainband checkpoint ls`: lists the checkpoints in a directory, and the job that writes there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
from rich.console import Console

from trainband.checkpoint import Checkpoint
from trainband.checkpoint.lock import LOCK_FILE, MOST_LOCK_BYTES, holder_of
from trainband.cli.checkpoint.common import (
    age_of,
    counted,
    directory_argument,
    home_of,
    is_one,
    json_option,
    local_time,
    plain_table,
    print_json,
)
from trainband.cli.terminal import console_for_people
from trainband.errors import CheckpointError, DamagedCheckpoint, YourError
from trainband.runtime.formatting import printable, size
from trainband.runtime.regular_files import UnusableFile, read_regular

# Not the docstring: click's \b, which keeps line breaks, does not work in a raw docstring.
_LS_HELP = """List the checkpoints in DIR: time, size and metrics, the best one, and the job that writes there.

Exit code 1 if one is damaged; tensors are not read (see verify).

\b
--json: directory, lock (null, or owner, host, pid, acquired_at,
renewed_at, expired), best (null, or step, metric, value), checkpoints:
each with step, path, damage (null, or the reason), created_at, nbytes,
files, strategy, metrics, complete, best. Times are seconds since 1970.
"""


class LockInfo(msgspec.Struct, frozen=True):
    """The job that writes into a directory; times in seconds since 1970, `None` if not in the lock file."""

    owner: str | None
    host: str | None
    pid: int | None
    acquired_at: float | None
    renewed_at: float
    expired: bool


class BestInfo(msgspec.Struct, frozen=True):
    """The checkpoint that is marked as the best, and its metric."""

    step: int
    metric: str
    value: float


class Listed(msgspec.Struct, frozen=True):
    """One checkpoint of a directory; if damaged, only what is known."""

    step: int
    path: str
    damage: str | None
    created_at: float | None = None
    nbytes: int | None = None
    files: int | None = None
    strategy: str | None = None
    metrics: Mapping[str, float] = {}
    complete: bool = False
    best: bool = False


class Listing(msgspec.Struct, frozen=True):
    """A checkpoint directory."""

    directory: str
    lock: LockInfo | None
    best: BestInfo | None
    checkpoints: tuple[Listed, ...]


@click.command(help=_LS_HELP, short_help="List the checkpoints in a directory, and the job that writes there.")
@directory_argument
@json_option
def ls(directory: Path, as_json: bool) -> None:
    """The command; `_LS_HELP` is its documentation."""
    listing = list_directory(directory)
    if as_json:
        print_json(listing)
    else:
        _show_listing(listing, console_for_people())
    if any(one.damage for one in listing.checkpoints):
        click.get_current_context().exit(1)


def list_directory(directory: Path) -> Listing:
    """Lists a checkpoint directory.

    Raises:
      YourError: it is not a directory of checkpoints.
      CheckpointError: the file system refuses.
    """
    if is_one(directory):
        raise YourError(f"{directory} is one checkpoint; list {directory.parent}, or use show.")
    home = home_of(directory)
    mark = home.best
    best = None if mark is None else BestInfo(*mark)
    listed = []
    for step in home.steps():
        path = home.path_of(step)
        try:
            manifest = Checkpoint.open(path).manifest
        except CheckpointError as exc:
            if not path.exists():
                continue  # removed since it was listed
            if not isinstance(exc, DamagedCheckpoint):
                raise
            listed.append(Listed(step, str(path), str(exc)))
            continue
        listed.append(
            Listed(
                step,
                str(path),
                None,
                manifest.created_at,
                manifest.nbytes,
                len(manifest.files),
                manifest.strategy,
                manifest.metrics,
                manifest.complete,
                best is not None and best.step == step,
            )
        )
    return Listing(str(directory), _lock_of(directory), best, tuple(listed))


def _lock_of(directory: Path) -> LockInfo | None:
    """The holder of the lock, from its file alone: nothing is written, so its age is by this machine's clock."""
    path = directory / LOCK_FILE
    try:
        data, renewed_at = read_regular(path, MOST_LOCK_BYTES), path.stat().st_mtime
    except UnusableFile:
        data, renewed_at = b"", time.time()
    except OSError:
        return None
    holder = holder_of(data)
    if holder is None:
        return LockInfo(None, None, None, None, renewed_at, False)
    expired = time.time() - renewed_at > holder.lease_s
    return LockInfo(holder.owner, holder.host, holder.pid, holder.acquired_at, renewed_at, expired)


def _show_listing(listing: Listing, console: Console) -> None:
    checkpoints = listing.checkpoints
    strategies = {one.strategy for one in checkpoints if one.strategy}
    number = counted(len(checkpoints), "checkpoint") if checkpoints else "no checkpoint"
    total = f", {size(sum(one.nbytes or 0 for one in checkpoints))}" if checkpoints else ""
    common = f", strategy {printable(next(iter(strategies)))}" if len(strategies) == 1 else ""
    console.print(f"{listing.directory}: {number}{total}{common}", style="bold")
    if (lock := listing.lock) is not None:
        _show_lock(lock, console)
    if listing.best is not None:
        console.print(f"best: step {listing.best.step:,}, {printable(listing.best.metric)} {listing.best.value:.6g}")
    if not checkpoints:
        return
    table = plain_table(right="step")
    table.add_column("time", no_wrap=True)
    for title in ("ago", "size", "files"):
        table.add_column(title, justify="right", no_wrap=True)
    if len(strategies) > 1:
        table.add_column("strategy", overflow="fold")
    table.add_column("metrics", overflow="fold")
    table.add_column("", no_wrap=True)
    now = time.time()
    for one in checkpoints:
        marks = [word for word, is_so in (("best", one.best), ("complete", one.complete)) if is_so]
        table.add_row(
            f"{one.step:,}",
            "" if one.created_at is None else local_time(one.created_at),
            "" if one.created_at is None else age_of(now - one.created_at),
            "" if one.nbytes is None else size(one.nbytes),
            "" if one.files is None else str(one.files),
            *([printable(one.strategy or "")] if len(strategies) > 1 else []),
            "\n".join(f"{printable(name)} {value:.4g}" for name, value in one.metrics.items()),
            "damaged" if one.damage else "\n".join(marks),
            style="red" if one.damage else None,
        )
    console.print(table)
    for one in checkpoints:
        if one.damage:
            console.print(f"step {one.step:,} is damaged: {one.damage}", style="red")


def _show_lock(lock: LockInfo, console: Console) -> None:
    who = "a job that its lock file does not name" if lock.owner is None else printable(lock.owner)
    where = "" if lock.pid is None else f" (process {lock.pid} on {printable(lock.host or '')})"
    since = "" if lock.acquired_at is None else f" since {local_time(lock.acquired_at)}"
    renewed = f"renewed {age_of(time.time() - lock.renewed_at)} ago"
    if lock.expired:
        console.print(
            f"left locked by {who}{where}, last {renewed}; the next training run takes it over", style="yellow"
        )
    else:
        console.print(f"in use by {who}{where}{since}, {renewed}", style="green")
