"""`trainband export`: a checkpoint and a function as a model for other programs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from trainband.cli.predictor import (
    batch_option,
    example_from,
    example_option,
    input_option,
    inputs_from,
    model_option,
    predictor_from,
)
from trainband.cli.terminal import console_for_people
from trainband.export.targets import TARGETS

# Not the docstring, because click's mark \b for lines to leave as they are cannot stand in a raw one.
_HELP = """Export the newest checkpoint in SOURCE, with a function of yours, to the directory OUT.

SOURCE is a directory of checkpoints, or one of them. The export is loaded again and compared with the function
itself before it is put in place.

\b
stablehlo    a program for any JAX, with the weights and load.py, which
             runs it with nothing but JAX.
"""


@click.command(help=_HELP, short_help="A checkpoint and a function for other programs.")
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@model_option
@click.option("--to", default="stablehlo", show_default=True, type=click.Choice(list(TARGETS)), help="The format.")
@example_option
@input_option
@batch_option
@click.option("--force", is_flag=True, help="Replace an earlier export in OUT.")
def export(
    source: Path,
    out: Path,
    model: str,
    to: str,
    example: Path | None,
    inputs: tuple[str, ...],
    batch: int | None,
    force: bool,
) -> None:
    """The command; `_HELP` is its documentation."""
    # The machine's accelerators belong to the training that runs there; an export needs none.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from trainband.export.exporting import export_program
    from trainband.export.source import program_of

    program = program_of(
        source, predictor_from(model), example=example_from(example), inputs=inputs_from(inputs), batch=batch
    )
    report = export_program(program, out, to, force=force)
    console_for_people().print(str(report), soft_wrap=True)
