"""`trainband compress`: a checkpoint in fewer bytes, with a report of what that costs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from trainband.cli.predictor import (
    batch_option,
    example_from,
    example_option,
    input_option,
    inputs_from,
    optional_model_option,
    predictor_from,
)
from trainband.cli.terminal import console_for_people
from trainband.errors import DataError, YourError

if TYPE_CHECKING:
    from trainband.compress import Report
    from trainband.model.inference import InferenceProgram
    from trainband.model.signature import Signature

_LABELS = "labels"
_EXAMPLES = 8
"""Of the data that is given, as an example, where there is no other."""

# Not the docstring, because click's mark \b for lines to leave as they are cannot stand in a raw one.
_HELP = """Write the newest checkpoint in SOURCE in fewer bytes into a directory, and say what that costs.

SOURCE is a directory of checkpoints, or one of them. `trainband export` and `trainband serve` take the directory that
is made in place of a checkpoint; what they make of it holds the small weights and decodes them in the program.

\b
trainband compress runs/a --int8 --out small
trainband compress runs/a --model program.py:predict --int8 \\
    --calibrate data.npz --evaluate test.npz --out small

Without --model, only weights are compared, and nothing can be calibrated or evaluated.
"""


@click.command(help=_HELP, short_help="A checkpoint in fewer bytes.")
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@optional_model_option
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The directory to make.")
@click.option("--int8", is_flag=True, help="Weights as 8-bit integers, with a scale for each output channel.")
@click.option(
    "--calibrate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="DATA.npz",
    help="Some hundred typical examples: activations become 8-bit integers, too.",
)
@click.option(
    "--percentile",
    type=click.FloatRange(0, 100, min_open=True),
    help="Calibrate by this percentile of magnitudes.  [default: by the largest]",
)
@click.option(
    "--prune",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Set this share of the weights to 0, the smallest ones; train with Pruning for more than a third.",
)
@click.option(
    "--half",
    is_flag=False,
    flag_value="float16",
    default=None,
    type=click.Choice(["float16", "bfloat16"]),
    help="Floating-point tensors in half precision; float16 if nothing is said.",
)
@click.option(
    "--rank",
    type=click.FloatRange(0, min_open=True),
    help="Weights as two factors of this rank; below 1, of a rank that keeps this share of their squares.",
)
@click.option("--only", multiple=True, metavar="PATTERN", help="Only tensors whose name has this regular expression.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Not tensors whose name has this.")
@click.option("--smallest", type=click.IntRange(min=1), help="Elements of the smallest tensor to take.  [default: 256]")
@click.option(
    "--evaluate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="DATA.npz",
    help=f"Examples with {_LABELS!r}: the report has the accuracy before and after.",
)
@example_option
@input_option
@batch_option
@click.option("--force", is_flag=True, help="Replace an earlier compressed model in --out.")
def compress(
    source: Path,
    model: str | None,
    out: Path,
    int8: bool,
    calibrate: Path | None,
    percentile: float | None,
    prune: float | None,
    half: str | None,
    rank: float | None,
    only: tuple[str, ...],
    exclude: tuple[str, ...],
    smallest: int | None,
    evaluate: Path | None,
    example: Path | None,
    inputs: tuple[str, ...],
    batch: int | None,
    force: bool,
) -> None:
    """The command; `_HELP` is its documentation."""
    # The machine's accelerators belong to the training that runs there; this needs none.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from trainband.compress.compressed import is_compressed
    from trainband.compress.compressing import compress as compressed_of
    from trainband.compress.selection import SMALLEST, Selection
    from trainband.export.source import program_of

    if is_compressed(source):
        raise YourError(f"{source} is compressed already; compress the checkpoint that it was made of.")
    if model is None and (calibrate or evaluate or example or inputs or batch):
        raise YourError(
            "To calibrate or to evaluate, the command needs to know what is computed: give --model program.py:predict."
        )
    typical, labelled = example_from(calibrate), example_from(evaluate)
    program: InferenceProgram | None = None
    if model is not None:
        predictor = predictor_from(model)
        given = example_from(example)
        if given is None and predictor.example is None and not inputs:
            given = _example_of(typical if typical is not None else labelled)
        program = program_of(source, predictor, example=given, inputs=inputs_from(inputs), batch=batch)
    made = compressed_of(
        source if program is None else program,
        int8=int8,
        calibrate=_named(typical, program, calibrate),
        percentile=percentile,
        prune=prune,
        half=half or False,
        rank=rank,
        select=Selection(only=only, exclude=exclude, smallest=smallest or SMALLEST),
        evaluate=_named(labelled, program, evaluate),
    )
    made.save(out, force=force)
    console = console_for_people()
    assert made.report is not None
    console.print(_table(made.report))
    console.print(f"compressed {made.source} to {out}: {made.report}", soft_wrap=True)


def _example_of(data: Any) -> Any:
    """The first examples of the data to calibrate or evaluate with, as a batch; `None` if there is none."""
    if not isinstance(data, dict):
        return None if data is None else data[:_EXAMPLES]
    inputs = {name: array[:_EXAMPLES] if array.ndim else array for name, array in data.items() if name != _LABELS}
    return next(iter(inputs.values())) if len(inputs) == 1 else inputs


def _named(data: Any, program: InferenceProgram | None, path: Path | None) -> Mapping[str, NDArray[Any]] | None:
    """Arrays by the names of a program's inputs; the only array is the only input, whatever its name is."""
    if data is None or program is None:
        return None
    wanted = _inputs(program.signature)
    arrays = {"input": data} if isinstance(data, np.ndarray) else dict(data)
    labels = {} if _LABELS in wanted or _LABELS not in arrays else {_LABELS: arrays.pop(_LABELS)}
    if not arrays:
        raise DataError(f"{path} has no examples; give {program.signature.expected()}.")
    if len(wanted) == len(arrays) == 1:
        arrays = dict(zip(wanted, arrays.values(), strict=True))
    return {**arrays, **labels}


def _inputs(signature: Signature) -> list[str]:
    return [spec.name for spec in signature.inputs]


def _table(report: Report) -> Table:
    table = Table("tensor", "stored", title=None)
    for heading in ("bytes", "", "weights change", "outputs change"):
        table.add_column(heading, justify="right")
    worst = report.worst
    for one in report.tensors:
        change = "" if one.change is None else f"{one.change:.3%}"
        mark = " (worst)" if worst is not None and one.name == worst.name and len(report.tensors) > 1 else ""
        table.add_row(
            f"{one.name}{mark}",
            one.stored,
            f"{one.nbytes_before:,}",
            f"{one.nbytes_after:,}",
            f"{one.error:.3%}",
            change,
        )
    return table
