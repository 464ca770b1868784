"""`trainband checkpoint show`: shows the contents of one checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from trainband.checkpoint import Checkpoint, Manifest, Part, Piece
from trainband.checkpoint.compare import owners
from trainband.cli.checkpoint.common import (
    age_of,
    counted,
    directory_argument,
    json_option,
    local_time,
    open_checkpoint,
    plain_table,
    print_json,
    step_option,
    type_of,
)
from trainband.cli.terminal import console_for_people
from trainband.runtime.formatting import printable, size

GROUPS = {
    "params": "params",
    "model_state": "model state",
    "optimizer": "optimizer state",
    "workers": "the workers' own",
}

# Not the docstring: click's \b, which keeps line breaks, does not work in a raw docstring.
_SHOW_HELP = """Show the contents of one checkpoint: global step, workers, files, and every tensor.

\b
--json: path, step, created_at (seconds since 1970), trainband, strategy,
complete, nbytes, metrics, trainings (the global step where each began),
workers: each with task, steps, training, position; sources: positions by
name; files: each with file, ps, version, nbytes; tensors: each with name,
dtype, shape, nbytes, places: each with file, ps, start, stop (its rows).

\b
--values NAME --json: name, dtype, shape, min, max, mean (each null if
undefined), and the counts nan and infinite. min, max and mean are of the
finite values; of complex ones, min and max are of the magnitudes, and
mean is null.
"""


@click.command(help=_SHOW_HELP, short_help="Show one checkpoint, or the values of a tensor.")
@directory_argument
@step_option
@click.option("--values", "tensor", metavar="NAME", help="Show the values of one tensor instead, such as params/w.")
@json_option
def show(directory: Path, step: int | None, tensor: str | None, as_json: bool) -> None:
    """The command; `_SHOW_HELP` is its documentation."""
    one = open_checkpoint(directory, step)
    console = console_for_people()
    if tensor is not None:
        values = one.read(tensor, prefer_ps=0)
        piece = one.manifest.tensors[tensor]
        if as_json:
            print_json(_summary(piece, values))
        else:
            _show_values(piece, values, owners(one.manifest, tensor), console)
    elif as_json:
        print_json(_described(one))
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
    age = age_of(time.time() - manifest.created_at)
    written = local_time(manifest.created_at)
    writer = printable(f"{manifest.strategy} of trainband {manifest.trainband}")
    console.print(f"written {written}, {age} ago, by {writer}")
    if manifest.metrics:
        metrics = ", ".join(f"{name} {value:.6g}" for name, value in manifest.metrics.items())
        console.print(f"metrics {printable(metrics)}")
    if manifest.trainings:
        console.print(f"trainings began at global step {', '.join(f'{step:,}' for step in manifest.trainings)}")

    if manifest.workers:
        table = plain_table("worker", title="workers", right="steps training")
        table.add_column("position in its data", overflow="fold")
        for entry in manifest.workers.values():
            worker = _worker(entry.task, entry.steps, entry.position)
            training = "" if worker["training"] is None else f"{worker['training']}"
            table.add_row(
                printable(entry.task), f"{entry.steps:,}", training, _words(worker["position"]) or "not known"
            )
        console.print()
        console.print(table)
    for name, text in manifest.sources.items():
        console.print(f"shared source {printable(name)}: {_words(_from_json(text))}")

    table = plain_table("file", title="files", right="ps version tensors size")
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
    totals = f"{counted(len(pieces), 'tensor')}, {counted(sum(piece.size for piece in pieces), 'value')}"
    table = plain_table("name", title=f"{title}: {totals}, {size(sum(piece.nbytes for piece in pieces))}")
    table.add_column("type", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for piece in pieces:
        table.add_row(piece.tensor, type_of(piece), size(piece.nbytes), _where(manifest, piece.tensor))
    return table


def _where(manifest: Manifest, tensor: str) -> str:
    """The ps that hold a tensor's rows, as in `trainband status`; the file if it is the workers' own."""
    places = []
    for part, stored in manifest.places[tensor]:
        rows = "" if stored.piece.whole else f"[{stored.piece.start}:{stored.piece.stop}]"
        ps = _ps(manifest, part)
        places.append(f"{part.file if ps is None else f'ps:{ps}'}{rows}")
    return ", ".join(places) + (" (each its own)" if owners(manifest, tensor) else "")


def _ps(manifest: Manifest, part: Part) -> int | None:
    return None if part is manifest.worker_part else part.ps


def _worker(task: str, steps: int, position: str) -> dict[str, Any]:
    """A worker's entry; those parts of its position that are JSON are decoded."""
    where = _from_json(position)
    if not (isinstance(where, dict) and {"training", "position"} <= where.keys()):
        return {"task": task, "steps": steps, "training": None, "position": where}
    return {"task": task, "steps": steps, "training": where["training"], "position": _from_json(where["position"])}


def _from_json(text: Any) -> Any:
    """The value of a text if it is JSON, else the text; `None` if it is empty."""
    try:
        value = json.loads(text) if text else None
        msgspec.json.encode(value)
        _words(value)
        return value
    except (ValueError, TypeError, RecursionError, OverflowError):
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
            return printable(f"{name} {text}".strip())


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
    console.print(f"{piece.tensor}  {type_of(piece)}  {size(piece.nbytes)}", style="bold")
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
