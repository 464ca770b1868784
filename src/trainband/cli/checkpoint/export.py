"""`trainband checkpoint export`: a checkpoint for other programs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from trainband.checkpoint.export import FORMATS
from trainband.checkpoint.export import export as export_to
from trainband.cli.checkpoint.common import counted, directory_argument, open_checkpoint, step_option
from trainband.cli.terminal import console_for_people
from trainband.runtime.formatting import size

# Not the docstring: click's \b, which keeps line breaks, does not work in a raw docstring.
_EXPORT_HELP = """Write a checkpoint's model to OUT for other programs.

\b
safetensors  one file; tensors by name, params/hidden/kernel; the global
             step is in its metadata.
npz          one file for numpy.load; the same names, and step; bfloat16
             and float8, which NumPy's format lacks, become float32.
orbax        a directory for orbax.checkpoint; a tree of dicts, {"params":
             ..., "model_state": ..., "optimizer": ..., "step": ...}.
             Needs trainband[orbax].

State of single workers, such as random keys, is left out. OUT appears whole or not at all.
"""


@click.command(help=_EXPORT_HELP, short_help="Export to safetensors, Orbax or NumPy.")
@directory_argument
@step_option
@click.option("--to", required=True, type=click.Choice(FORMATS), help="The format.")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--optimizer/--params-only",
    default=True,
    help="With the optimizer state, or only params and model state.  [default: with it]",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
def export(directory: Path, step: int | None, to: str, out: Path, optimizer: bool, force: bool) -> None:
    """The command; `_EXPORT_HELP` is its documentation."""
    one = open_checkpoint(directory, step)
    if to == "orbax":
        # Orbax starts JAX, which would take accelerators (most of a GPU's memory, all of a TPU) from a training run on
        # this machine; the export reads from disk and needs none.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    done = export_to(one, out, to, optimizer=optimizer, force=force)
    console = console_for_people()
    console.print(
        f"exported global step {one.global_step:,} to {done.path}: "
        f"{counted(done.tensors, 'tensor')}, {size(done.nbytes)}",
        soft_wrap=True,
    )
    if done.widened:
        kinds = ", ".join(sorted({piece.dtype for piece in done.widened}))
        console.print(
            f"{counted(len(done.widened), 'tensor')} became float32, because NumPy's format has no {kinds}",
            style="yellow",
        )
