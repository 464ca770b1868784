"""`trainband compress`: a smaller checkpoint, with a report of what that costs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from trainband.cli.options import pop_options
from trainband.cli.predictor import TracingOptions, example_from, predictor_from, tracing_options
from trainband.cli.terminal import console_for_people
from trainband.errors import DataError, YourError

if TYPE_CHECKING:
    from trainband.compress import Report
    from trainband.model.inference import InferenceProgram

_LABELS = "labels"
_EXAMPLES = 8
"""Rows of the given data that serve as the example if there is no other."""

# Not the docstring: click's \b, which keeps line breaks, does not work in a raw docstring.
_HELP = """Compress the newest checkpoint in SOURCE into a directory, and report what that costs.

SOURCE is a checkpoint or a directory of checkpoints. `trainband export` and `trainband serve` accept the result in
place of a checkpoint; they keep the small weights and decode them in the program.

\b
trainband compress runs/a --int8 --out small
trainband compress runs/a --model program.py:predict --int8 \\
    --calibrate data.npz --evaluate test.npz --out small

Without --model, the report compares only weights, and --calibrate and --evaluate are not possible.
"""


@click.command(help=_HELP, short_help="Compress a checkpoint.")
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--model",
    metavar="FILE.py:NAME",
    help="A function predict(params, batch), a trainband.Predictor or a Keras model, in a file or a module.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The directory to make.")
@click.option("--int8", is_flag=True, help="Weights as 8-bit integers, with a scale for each output channel.")
@click.option(
    "--calibrate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="DATA.npz",
    help="A few hundred typical examples: makes activations 8-bit integers, too.",
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
    help="Set this share of the weights, the smallest, to 0; for more than a third, train with Pruning.",
)
@click.option(
    "--half",
    is_flag=False,
    flag_value="float16",
    default=None,
    type=click.Choice(["float16", "bfloat16"]),
    help="Floating-point tensors in half precision; float16 by default.",
)
@click.option(
    "--rank",
    type=click.FloatRange(0, min_open=True),
    help="Weights as two factors of this rank; below 1: the rank that keeps this share of their squares.",
)
@click.option("--only", multiple=True, metavar="PATTERN", help="Only tensors whose name matches this regex.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="No tensors whose name matches this.")
@click.option("--smallest", type=click.IntRange(min=1), help="Fewest elements of a tensor to compress.  [default: 256]")
@click.option(
    "--evaluate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="DATA.npz",
    help=f"Examples with {_LABELS!r}: report the accuracy before and after.",
)
@tracing_options
@click.option("--force", is_flag=True, help="Replace an earlier compressed model in --out.")
def compress(
    source: Path,
    model: str | None,
    out: Path,
    half: str | None,
    smallest: int | None,
    calibrate: Path | None,
    evaluate: Path | None,
    force: bool,
    **given: Any,
) -> None:
    """The command; `_HELP` is its documentation."""
    # The machine's accelerators belong to the training that runs there; this needs none.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from trainband.compress.compressed import is_compressed
    from trainband.compress.compressing import compress as compressed_of
    from trainband.compress.selection import SMALLEST, Selection
    from trainband.export.source import program_of

    if is_compressed(source):
        raise YourError(f"{source} is already compressed; compress the checkpoint that it was made from.")
    tracing = pop_options(TracingOptions, given)
    if model is None and (calibrate or evaluate or any((tracing.example, tracing.inputs, tracing.batch))):
        raise YourError("calibrating, evaluating and tracing need the function; give --model program.py:predict.")
    typical, labelled = example_from(calibrate), example_from(evaluate)
    program: InferenceProgram | None = None
    if model is not None:
        predictor = predictor_from(model)
        read = tracing.read()
        if read["example"] is None and predictor.example is None and not read["inputs"]:
            read["example"] = _example_of(typical if typical is not None else labelled)
        program = program_of(source, predictor, **read)
    made = compressed_of(
        source if program is None else program,
        calibrate=_named(typical, program, calibrate),
        half=half or False,
        select=replace(pop_options(Selection, given), smallest=smallest or SMALLEST),
        evaluate=_named(labelled, program, evaluate),
        **given,
    )
    made.save(out, force=force)
    console = console_for_people()
    assert made.report is not None
    console.print(_table(made.report))
    console.print(f"compressed {made.source} to {out}: {made.report}", soft_wrap=True)


def _example_of(data: Any) -> Any:
    """The first examples of the calibration or evaluation data, as a batch; `None` without data."""
    if not isinstance(data, dict):
        return None if data is None else data[:_EXAMPLES]
    inputs = {name: array[:_EXAMPLES] if array.ndim else array for name, array in data.items() if name != _LABELS}
    return next(iter(inputs.values())) if len(inputs) == 1 else inputs


def _named(data: Any, program: InferenceProgram | None, path: Path | None) -> Mapping[str, NDArray[Any]] | None:
    """Arrays by the names of a program's inputs; a single array is the single input, whatever its name."""
    if data is None or program is None:
        return None
    wanted = [spec.name for spec in program.signature.inputs]
    arrays = {"input": data} if isinstance(data, np.ndarray) else dict(data)
    labels = {} if _LABELS in wanted or _LABELS not in arrays else {_LABELS: arrays.pop(_LABELS)}
    if not arrays:
        raise DataError(f"{path} has no examples; give {program.signature.expected()}.")
    if len(wanted) == len(arrays) == 1:
        arrays = dict(zip(wanted, arrays.values(), strict=True))
    return {**arrays, **labels}


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
