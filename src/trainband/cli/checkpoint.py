"""`trainband checkpoint`: what is in a checkpoint directory, whether it is sound, and how to take it elsewhere."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from trainband.checkpoint import Checkpoint, CheckpointDirectory, Manifest, Part, PartReader, Piece, Stored, decode
from trainband.checkpoint.compare import Change, compare, owners
from trainband.checkpoint.export import FORMATS
from trainband.checkpoint.export import export as export_to
from trainband.checkpoint.lock import LOCK_FILE, Holder
from trainband.checkpoint.manifest import MANIFEST_FILE
from trainband.errors import CheckpointError, DamagedCheckpoint, YourError
from trainband.figures import size

GROUPS = {
    "params": "params",
    "model_state": "model state",
    "optimizer": "optimizer state",
    "workers": "the workers' own",
}

# Not the commands' docstrings, because click's mark \b for lines to leave as they are cannot stand in a raw one.
_LS_HELP = """List the checkpoints in DIR: when, how large, with what metrics; which is the best; who writes there.

Exit code 1 if one is damaged, which is found out here without reading its tensors (see verify).

\b
--json: directory, lock (null, or owner, host, pid, acquired_at,
renewed_at, expired), best (null, or step, metric, value), checkpoints:
each with step, path, damage (null, or the reason), created_at, nbytes,
files, strategy, metrics, complete, best. Times are seconds since 1970.
"""

_SHOW_HELP = """Show what one checkpoint holds: global step, workers, files, and every tensor.

\b
--json: path, step, created_at (seconds since 1970), trainband, strategy,
complete, nbytes, metrics, trainings (the global step where each began),
workers: each with task, steps, training, position; sources: positions by
name; files: each with file, ps, version, nbytes; tensors: each with name,
dtype, shape, nbytes, places: each with file, ps, start, stop (its rows).

\b
--values NAME --json: name, dtype, shape, min, max, mean (each null where
there is none), nan and infinite (how many). min, max and mean are of the
finite values; of complex ones min and max are of their magnitudes, and
mean is null.
"""

_DIFF_HELP = """Compare the tensors of two checkpoints, the most changed first.

Exit code 0 if they are the same, 1 if they differ, 2 if they cannot be read. Without a tolerance, the same means
to the bit; with one, that |a - b| <= atol + rtol * |b| everywhere, NaN being the same as NaN. The relative change
is the L2 norm of the difference, divided by that of A.

\b
    trainband checkpoint diff DIR/step-000000000100 DIR/step-000000000200
    trainband checkpoint diff DIR --steps 100 200
"""

_EXPORT_HELP = """Write a checkpoint's model to OUT for other programs.

\b
safetensors  one file; tensors by name, params/hidden/kernel; the global
             step is in its metadata.
npz          one file for numpy.load; the same names, and step; bfloat16
             and float8, which NumPy's format lacks, become float32.
orbax        a directory for orbax.checkpoint; a tree of dicts, {"params":
             ..., "model_state": ..., "optimizer": ..., "step": ...}.
             Needs trainband[orbax].

What belongs to single workers, such as their random keys, stays behind. OUT appears whole or not at all.
"""

_directory = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
_step = click.option("--step", type=click.IntRange(min=0), help="Of this global step.  [default: the newest]")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")


@click.group()
def checkpoint() -> None:
    """List, look into, check, compare and export checkpoints.

    DIR is a directory of checkpoints, or one checkpoint in it (DIR/step-000000001000). A training that writes there
    is not disturbed. Exit code 2: what was given cannot be used.
    """


# --- ls


class LockInfo(msgspec.Struct, frozen=True):
    """Who writes into a directory; times in seconds since 1970, `None` where the lock file does not say."""

    owner: str | None
    host: str | None
    pid: int | None
    acquired_at: float | None
    renewed_at: float
    expired: bool


class BestInfo(msgspec.Struct, frozen=True):
    """Which checkpoint was marked as the best, and by what."""

    step: int
    metric: str
    value: float


class Listed(msgspec.Struct, frozen=True):
    """One checkpoint of a directory; of a damaged one, only what can be known."""

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


@checkpoint.command(help=_LS_HELP, short_help="The checkpoints in a directory, and who writes there.")
@_directory
@_json
def ls(directory: Path, as_json: bool) -> None:
    """The command; `_LS_HELP` is its documentation."""
    listing = list_directory(directory)
    if as_json:
        _print_json(listing)
    else:
        _show_listing(listing, _console())
    if any(one.damage for one in listing.checkpoints):
        click.get_current_context().exit(1)


def list_directory(directory: Path) -> Listing:
    """What is in a checkpoint directory.

    Raises:
      YourError: it is not one.
      CheckpointError: the file system refuses.
    """
    if _is_one(directory):
        raise YourError(f"{directory} is one checkpoint; list {directory.parent}, or look into it with show.")
    home = _home(directory)
    mark = home.best
    best = None if mark is None else BestInfo(*mark)
    listed = []
    for step in home.steps():
        path = home.path_of(step)
        try:
            manifest = Checkpoint.open(path).manifest
        except CheckpointError as exc:
            if not path.exists():
                continue  # removed since we looked
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
    """Who holds the lock, by its file alone: nothing is written, so its age is by this machine's clock."""
    path = directory / LOCK_FILE
    try:
        data, renewed_at = path.read_bytes(), path.stat().st_mtime
    except OSError:
        return None
    try:
        holder = msgspec.json.decode(data, type=Holder)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return LockInfo(None, None, None, None, renewed_at, False)
    expired = time.time() - renewed_at > holder.lease_s
    return LockInfo(holder.owner, holder.host, holder.pid, holder.acquired_at, renewed_at, expired)


def _show_listing(listing: Listing, console: Console) -> None:
    checkpoints = listing.checkpoints
    strategies = {one.strategy for one in checkpoints if one.strategy}
    counted = _count(len(checkpoints), "checkpoint") if checkpoints else "no checkpoint"
    total = f", {size(sum(one.nbytes or 0 for one in checkpoints))}" if checkpoints else ""
    common = f", strategy {next(iter(strategies))}" if len(strategies) == 1 else ""
    console.print(f"{listing.directory}: {counted}{total}{common}", style="bold")
    if (lock := listing.lock) is not None:
        _show_lock(lock, console)
    if listing.best is not None:
        console.print(f"best: step {listing.best.step:,}, {listing.best.metric} {listing.best.value:.6g}")
    if not checkpoints:
        return
    table = _table(right="step")
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
            "" if one.created_at is None else _local(one.created_at),
            "" if one.created_at is None else _age(now - one.created_at),
            "" if one.nbytes is None else size(one.nbytes),
            "" if one.files is None else str(one.files),
            *([one.strategy or ""] if len(strategies) > 1 else []),
            "\n".join(f"{name} {value:.4g}" for name, value in one.metrics.items()),
            "damaged" if one.damage else "\n".join(marks),
            style="red" if one.damage else None,
        )
    console.print(table)
    for one in checkpoints:
        if one.damage:
            console.print(f"step {one.step:,} is damaged: {one.damage}", style="red")


def _show_lock(lock: LockInfo, console: Console) -> None:
    who = "a job that its lock file does not name" if lock.owner is None else lock.owner
    where = "" if lock.pid is None else f" (process {lock.pid} on {lock.host})"
    since = "" if lock.acquired_at is None else f" since {_local(lock.acquired_at)}"
    renewed = f"renewed {_age(time.time() - lock.renewed_at)} ago"
    if lock.expired:
        console.print(f"left locked by {who}{where}, last {renewed}: the next training takes it over", style="yellow")
    else:
        console.print(f"in use by {who}{where}{since}, {renewed}", style="green")


# --- show


@checkpoint.command(help=_SHOW_HELP, short_help="What one checkpoint holds; the values of a tensor.")
@_directory
@_step
@click.option("--values", "tensor", metavar="NAME", help="The values of one tensor instead, such as params/w.")
@_json
def show(directory: Path, step: int | None, tensor: str | None, as_json: bool) -> None:
    """The command; `_SHOW_HELP` is its documentation."""
    one = _open(directory, step)
    console = _console()
    if tensor is not None:
        values = one.read(tensor, prefer_ps=0)
        piece = one.manifest.tensors[tensor]
        if as_json:
            _print_json(_summary(piece, values))
        else:
            _show_values(piece, values, owners(one.manifest, tensor), console)
    elif as_json:
        _print_json(_described(one))
    else:
        _show_checkpoint(one, console)


def _described(one: Checkpoint) -> dict[str, Any]:
    manifest = one.manifest
    return {
        "path": str(one.path),
        "step": manifest.global_step,
        "created_at": manifest.created_at,
        "trainband": manifest.trainband,
        "strategy": manifest.strategy,
        "complete": manifest.complete,
        "nbytes": manifest.nbytes,
        "metrics": manifest.metrics,
        "trainings": manifest.trainings,
        "workers": [_worker(entry.task, entry.steps, entry.position) for entry in manifest.workers.values()],
        "sources": {name: _from_json(text) for name, text in manifest.sources.items()},
        "files": [
            {"file": part.file, "ps": _ps(manifest, part), "version": part.version, "nbytes": part.nbytes}
            for part in manifest.files
        ],
        "tensors": [
            {
                "name": name,
                "dtype": piece.dtype,
                "shape": piece.shape,
                "nbytes": piece.nbytes,
                "places": [
                    {
                        "file": part.file,
                        "ps": _ps(manifest, part),
                        "start": stored.piece.start,
                        "stop": stored.piece.stop,
                    }
                    for part, stored in manifest.places[name]
                ],
            }
            for name, piece in manifest.tensors.items()
        ],
    }


def _show_checkpoint(one: Checkpoint, console: Console) -> None:
    manifest = one.manifest
    console.print(str(one.path), style="bold", soft_wrap=True)
    complete = ", the training is complete" if manifest.complete else ""
    console.print(f"global step {manifest.global_step:,}{complete}")
    age = _age(time.time() - manifest.created_at)
    console.print(
        f"written {_local(manifest.created_at)}, {age} ago, by {manifest.strategy} of trainband {manifest.trainband}"
    )
    if manifest.metrics:
        console.print("metrics " + ", ".join(f"{name} {value:.6g}" for name, value in manifest.metrics.items()))
    if manifest.trainings:
        console.print(f"trainings began at global step {', '.join(f'{step:,}' for step in manifest.trainings)}")

    if manifest.workers:
        table = _table("worker", title="workers", right="steps training")
        table.add_column("position in its data", overflow="fold")
        for entry in manifest.workers.values():
            worker = _worker(entry.task, entry.steps, entry.position)
            training = "" if worker["training"] is None else f"{worker['training']}"
            table.add_row(entry.task, f"{entry.steps:,}", training, _words(worker["position"]) or "not known")
        console.print()
        console.print(table)
    for name, text in manifest.sources.items():
        console.print(f"shared source {name}: {_words(_from_json(text))}")

    table = _table("file", title="files", right="ps version tensors size")
    for part in manifest.files:
        ps = _ps(manifest, part)
        table.add_row(
            part.file, "" if ps is None else str(ps), f"{part.version:,}", f"{len(part.pieces):,}", size(part.nbytes)
        )
    console.print()
    console.print(table)

    grouped: dict[str, list[Piece]] = {group: [] for group in GROUPS}
    for name, piece in manifest.tensors.items():
        grouped.setdefault(name.partition("/")[0], []).append(piece)
    for group, pieces in grouped.items():
        if pieces:
            console.print()
            console.print(_tensor_table(manifest, GROUPS.get(group, group), pieces))


def _tensor_table(manifest: Manifest, title: str, pieces: Sequence[Piece]) -> Table:
    counted = f"{_count(len(pieces), 'tensor')}, {_count(sum(piece.size for piece in pieces), 'value')}"
    table = _table("name", title=f"{title}: {counted}, {size(sum(piece.nbytes for piece in pieces))}")
    table.add_column("type", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for piece in pieces:
        table.add_row(piece.tensor, _type(piece), size(piece.nbytes), _where(manifest, piece.tensor))
    return table


def _where(manifest: Manifest, tensor: str) -> str:
    """The ps that hold a tensor's rows, as `trainband status` names them; the file where it is the workers' own."""
    places = []
    for part, stored in manifest.places[tensor]:
        rows = "" if stored.piece.whole else f"[{stored.piece.start}:{stored.piece.stop}]"
        ps = _ps(manifest, part)
        places.append(f"{part.file if ps is None else f'ps:{ps}'}{rows}")
    return ", ".join(places) + (" (each its own)" if owners(manifest, tensor) else "")


def _ps(manifest: Manifest, part: Part) -> int | None:
    return None if part is manifest.worker_part else part.ps


def _worker(task: str, steps: int, position: str) -> dict[str, Any]:
    """What a worker's entry says, with as much of its position taken apart as is JSON."""
    where = _from_json(position)
    if not (isinstance(where, dict) and {"training", "position"} <= where.keys()):
        return {"task": task, "steps": steps, "training": None, "position": where}
    return {"task": task, "steps": steps, "training": where["training"], "position": _from_json(where["position"])}


def _from_json(text: Any) -> Any:
    """What a text means if it is JSON, else the text; `None` if it is empty."""
    try:
        return json.loads(text) if text else None
    except (ValueError, TypeError, RecursionError):
        return text


def _words(value: Any, name: str = "") -> str:
    """A JSON value in one line: `passes 2, batches 10`."""
    match value:
        case None | []:
            return ""
        case dict():
            inner = [_words(one, key if key not in ("value", "state") else name) for key, one in value.items()]
            return ", ".join(word for word in inner if word)
        case _:
            text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
            text = text if len(text) <= 60 else f"{text[:57]}..."
            return f"{name} {text}".strip()


def _summary(piece: Piece, values: NDArray[Any]) -> dict[str, Any]:
    numbers = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    finite = numbers[np.isfinite(numbers)]
    ordered: NDArray[Any] = (
        values if values.dtype.kind in "iu" else np.abs(finite) if values.dtype.kind == "c" else finite
    )
    with np.errstate(over="ignore"):
        mean = float(finite.mean()) if finite.size and values.dtype.kind != "c" else None
    return {
        "name": piece.tensor,
        "dtype": piece.dtype,
        "shape": piece.shape,
        "min": ordered.min().item() if finite.size else None,
        "max": ordered.max().item() if finite.size else None,
        "mean": mean,
        "nan": int(np.isnan(numbers).sum()),
        "infinite": int(np.isinf(numbers).sum()),
    }


def _show_values(piece: Piece, values: NDArray[Any], several: Sequence[int], console: Console) -> None:
    summary = _summary(piece, values)
    console.print(f"{piece.tensor}  {_type(piece)}  {size(piece.nbytes)}", style="bold")
    if several:
        others = ", ".join(f"ps:{one}" for one in several[1:])
        console.print(f"this is ps:{several[0]}'s; {others} {'have their' if len(several) > 2 else 'has its'} own")
    known = [f"{name} {_figure(summary[name])}" for name in ("min", "max", "mean") if summary[name] is not None]
    console.print(", ".join(known) or "no finite value")
    wrong = [f"{summary[key]:,} {word}" for key, word in (("nan", "NaN"), ("infinite", "infinite")) if summary[key]]
    if wrong:
        console.print(f"{' and '.join(wrong)} of {piece.size:,} values", style="red")
    shown = values if values.dtype.isbuiltin == 1 else values.astype(np.float32)
    click.echo(np.array2string(shown, threshold=200, max_line_width=console.width))


def _figure(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.6g}"


# --- verify


@checkpoint.command(short_help="Compare every byte with its checksums.")
@_directory
@_step
@click.option("--all", "every", is_flag=True, help="Every checkpoint in DIR.")
def verify(directory: Path, step: int | None, every: bool) -> None:
    """Read every byte of a checkpoint and compare it with its checksums; exit code 1 if something is wrong."""
    if every and (step is not None or _is_one(directory)):
        raise YourError("--all is for all of a directory: give no --step, and not the path of one checkpoint.")
    paths = [_path(directory, step)]
    if every:
        home = _home(directory)
        paths = [home.path_of(one) for one in home.steps()]
    console = _console()
    damaged = [path for path in paths if not _verified(path, console)]
    if damaged:
        counted = f"{len(damaged)} of {len(paths)} checkpoints {'is' if len(damaged) == 1 else 'are'}"
        console.print(f"{'the checkpoint is' if len(paths) == 1 else counted} damaged", style="bold red")
        click.get_current_context().exit(1)
    console.print("the checkpoint is sound" if len(paths) == 1 else f"all {len(paths)} checkpoints are sound")


def _verified(path: Path, console: Console) -> bool:
    """Reads one checkpoint and says of each file whether it is sound; whether all are."""
    console.print(str(path), style="bold", soft_wrap=True)
    damage: DamagedCheckpoint | None = None
    try:
        manifest = Checkpoint.open(path).manifest
    except DamagedCheckpoint as exc:
        damage = exc
        try:  # one file that is missing says nothing of the others
            manifest = decode((path / MANIFEST_FILE).read_bytes(), str(path))
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


# --- diff


@checkpoint.command(help=_DIFF_HELP, short_help="How far the tensors of two checkpoints differ.")
@click.argument("paths", metavar="A B", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(min=0), nargs=2, metavar="N M", help="Of these global steps in one DIR.")
@click.option("--params-only", is_flag=True, help="Only params and model state.")
@click.option("--rtol", type=click.FloatRange(min=0), default=0.0, help="Relative tolerance, for every element.")
@click.option("--atol", type=click.FloatRange(min=0), default=0.0, help="Absolute tolerance, for every element.")
def diff(paths: Sequence[Path], steps: tuple[int, int] | None, params_only: bool, rtol: float, atol: float) -> None:
    """The command; `_DIFF_HELP` is its documentation."""
    if len(paths) != (2 if steps is None else 1):
        raise click.UsageError("give two checkpoints, or one DIR and --steps N M.")
    first, second = (_open(path, None) for path in paths) if steps is None else (_open(paths[0], n) for n in steps)
    changes = compare(first, second, params_only=params_only, rtol=rtol, atol=atol)
    _show_changes(first, second, changes, _console())
    if not all(change.same for change in changes):
        click.get_current_context().exit(1)


def _show_changes(first: Checkpoint, second: Checkpoint, changes: Sequence[Change], console: Console) -> None:
    for letter, one in (("A", first), ("B", second)):
        console.print(f"{letter}: {one.path} (global step {one.global_step:,})", soft_wrap=True)
    apart = [change for change in changes if not change.comparable]
    if apart:
        table = _table("tensor", title="only in one, or of another shape or dtype")
        table.add_column("A", overflow="fold")
        table.add_column("B", overflow="fold")
        for change in apart:
            table.add_row(change.tensor, *("-" if one is None else _type(one) for one in (change.first, change.second)))
        console.print(table)
    together = [change for change in changes if change.comparable]
    identical = sum(change.identical for change in together)
    if identical < len(together):
        table = _table("tensor", title="in both")
        table.add_column("type", overflow="fold")
        for title in ("largest\ndifference", "relative\nchange"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for change in together:
            numbers = ("", "") if change.identical else (f"{change.largest:.3g}", f"{change.relative:.3g}")
            word = "identical" if change.identical else "within" if change.same else "differs"
            style = "dim" if change.identical else None
            table.add_row(change.tensor, _type(change.first or change.second), *numbers, word, style=style)
        console.print(table)
    if changes and identical == len(changes):
        console.print(f"identical to the bit: {_count(identical, 'tensor')}")
        return
    within = sum(change.same and not change.identical for change in together)
    counts = [
        (len(together) - identical - within, "different"),
        (len(apart), "cannot be compared"),
        (within, "within the tolerance"),
        (identical, "identical to the bit"),
    ]
    console.print(
        f"{_count(len(changes), 'tensor')}: " + ", ".join(f"{count:,} {word}" for count, word in counts if count)
    )


# --- export


@checkpoint.command(help=_EXPORT_HELP, short_help="To safetensors, Orbax or NumPy.")
@_directory
@_step
@click.option("--to", required=True, type=click.Choice(FORMATS), help="The format.")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--optimizer/--params-only",
    default=True,
    help="With the optimizer state, or only params and model state.  [default: with]",
)
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def export(directory: Path, step: int | None, to: str, out: Path, optimizer: bool, force: bool) -> None:
    """The command; `_EXPORT_HELP` is its documentation."""
    one = _open(directory, step)
    if to == "orbax":
        # Orbax starts JAX, which would take the machine's accelerators, most of a GPU's memory and a TPU altogether,
        # from the training that runs there; what is exported comes from the disk and needs none.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    done = export_to(one, out, to, optimizer=optimizer, force=force)
    console = _console()
    console.print(
        f"exported global step {one.global_step:,} to {done.path}: "
        f"{_count(done.tensors, 'tensor')}, {size(done.nbytes)}",
        soft_wrap=True,
    )
    if done.widened:
        kinds = ", ".join(sorted({piece.dtype for piece in done.widened}))
        console.print(
            f"{_count(len(done.widened), 'tensor')} became float32, because NumPy's format has no {kinds}",
            style="yellow",
        )


# --- shared


def _home(directory: Path) -> CheckpointDirectory:
    if not directory.is_dir():
        raise YourError(f"There is no directory {directory}.")
    return CheckpointDirectory(directory, lambda line: click.echo(line, err=True))


def _is_one(path: Path) -> bool:
    """Whether a path is that of one checkpoint, rather than of a directory of them."""
    return path.is_dir() and ((path / MANIFEST_FILE).exists() or path.name.lstrip(".").startswith("step-"))


def _path(directory: Path, step: int | None) -> Path:
    """Where the checkpoint of a step is, or the newest, damaged or not."""
    if _is_one(directory):
        if step is not None:
            raise YourError(f"{directory} is one checkpoint; --step is for a directory of several.")
        return directory
    home = _home(directory)
    steps = home.steps()
    if not steps:
        raise CheckpointError(f"There is no checkpoint in {directory}.")
    if step is not None and step not in steps:
        near = sorted(sorted(steps, key=lambda one: abs(one - step))[:5])
        raise CheckpointError(
            f"There is no checkpoint of global step {step} in {directory}; "
            f"{'it has' if len(near) == len(steps) else 'near it are'} {', '.join(map(str, near))}."
        )
    return home.path_of(steps[-1] if step is None else step)


def _open(directory: Path, step: int | None) -> Checkpoint:
    """The checkpoint of a step, or the newest that is not damaged.

    Raises:
      YourError, CheckpointError: there is none.
    """
    path = _path(directory, step)
    if step is not None or path == directory:
        return Checkpoint.open(path)
    newest = _home(directory).newest()
    if newest is None:
        raise CheckpointError(f"There is no checkpoint in {directory} that is not damaged.")
    return newest


def _console() -> Console:
    """For tables and lines; a file or a pipe has no width that lines would have to be broken for."""
    width = None if sys.stdout.isatty() else 160
    # Names and paths may hold [brackets] and :colons:, which are not markup.
    return Console(width=width, markup=False, emoji=False, highlight=False)


def _print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())  # NaN becomes null


def _table(*left: str, title: str | None = None, right: str = "") -> Table:
    """A table that stays readable on a terminal of 80 columns: no lines, and only the longest texts fold."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, header_style="dim", padding=(0, 2, 0, 0)
    )
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right.split():
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _type(piece: Piece | None) -> str:
    return "" if piece is None else f"{piece.dtype}[{','.join(map(str, piece.shape))}]"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _local(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _age(seconds: float) -> str:
    """How long ago, in one unit: a column has no room for two."""
    whole = max(0, round(seconds))
    for unit, length, below in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 48 * 3600)):
        if whole < below:
            return f"{whole // length} {unit}"
    return f"{whole // 86400} days"
