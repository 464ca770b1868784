"""`trainband export`: a checkpoint and a function as a model for other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainband.cli.predictor import (
    batch_option,
    example_from,
    example_option,
    input_option,
    inputs_from,
    predictor_from,
)
from trainband.cli.terminal import console_for_people
from trainband.errors import YourError
from trainband.export.targets import TARGETS

if TYPE_CHECKING:
    from trainband.model.inference import InferenceProgram

VARIABLES = {"litert": "TRAINBAND_LITERT_PYTHON", "saved-model": "TRAINBAND_TENSORFLOW_PYTHON"}
"""The environment variable that names the Python of each format's converter."""

# Not the docstring, because click's mark \b for lines to leave as they are cannot stand in a raw one.
_HELP = """Export the newest checkpoint in SOURCE, with a function of yours, to the directory OUT.

SOURCE is a directory of checkpoints, or one of them, or a .keras file, which needs no --model. The export is loaded
again and compared with the function itself before it is put in place.

\b
stablehlo    a program for any JAX, with the weights and load.py, which
             runs it with nothing but JAX.
onnx         model.onnx, for ONNX Runtime and many others.
litert       model.tflite, for phones and small machines.
saved-model  for TensorFlow and TensorFlow Serving.

Three formats need more: `pip install 'trainband[onnx]'`, `pip install 'trainband[litert]'` and litert-converter,
and TensorFlow. The last two are found in the environment of --converter, or of $TRAINBAND_LITERT_PYTHON and
$TRAINBAND_TENSORFLOW_PYTHON, or are installed into one that --make-converter makes.
"""


@click.command(help=_HELP, short_help="A checkpoint and a function for other programs.")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--model",
    metavar="FILE.py:NAME",
    help="A function predict(params, batch), a trainband.Predictor, or a Keras model, in a file or a module.",
)
@click.option("--to", default="stablehlo", show_default=True, type=click.Choice(list(TARGETS)), help="The format.")
@example_option
@input_option
@batch_option
@click.option(
    "--int8", is_flag=True, help="Weights of 8 bits (litert; for others, compress first). Results may differ by 10%."
)
@click.option(
    "--converter",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The Python of an environment that has the format's converter.",
)
@click.option(
    "--make-converter",
    type=click.Path(file_okay=False, path_type=Path),
    help="Install the format's converter into a virtual environment here, unless it is there, and use it.",
)
@click.option("--force", is_flag=True, help="Replace an earlier export in OUT.")
def export(
    source: Path,
    out: Path,
    model: str | None,
    to: str,
    example: Path | None,
    inputs: tuple[str, ...],
    batch: int | None,
    int8: bool,
    converter: Path | None,
    make_converter: Path | None,
    force: bool,
) -> None:
    """The command; `_HELP` is its documentation."""
    # The machine's accelerators belong to the training that runs there; an export needs none.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("KERAS_BACKEND", "jax")
    from trainband.export.exporting import TOLERANCE, TOLERANCE_INT8, export_program
    from trainband.export.targets.base import Options

    program = _program(source, model, to, example=example_from(example), inputs=inputs_from(inputs), batch=batch)
    options = Options(converter=_converter(to, converter, make_converter), int8=int8)
    tolerance = TOLERANCE_INT8 if int8 else TOLERANCE
    report = export_program(program, out, to, force=force, options=options, tolerance=tolerance)
    console_for_people().print(str(report), soft_wrap=True)


def _program(source: Path, model: str | None, to: str, **tracing: Any) -> InferenceProgram:
    if source.suffix == ".keras":
        if model is not None:
            predictor_from(model)  # which registers the classes that the file needs
        from trainband.keras.predictor import predictor_of_file

        return predictor_of_file(source).program(source=str(source), **tracing)
    if model is None:
        raise YourError(f"{source} holds weights; say of which function or model: --model FILE.py:NAME.")
    from trainband.export.source import program_of

    # LiteRT's converter computes what is known, so that a bitmap would become larger than what it stands for.
    return program_of(source, predictor_from(model), unpack=to == "litert", **tracing)


def _converter(to: str, converter: Path | None, make: Path | None) -> Path | None:
    """The Python that converts to a format: as given, made, or of the environment variable; `None` for this one."""
    from trainband.export.converters.environment import PACKAGES, make_environment
    from trainband.runtime.waiting import say_on_stderr

    if to not in PACKAGES:
        if converter is not None or make is not None:
            raise YourError(f"--to {to} needs no converter; --converter and --make-converter are for {_either()}.")
        return None
    if converter is not None and make is not None:
        raise YourError("--converter names an environment, and --make-converter makes one; give one of the two.")
    if make is not None:
        return make_environment(make, PACKAGES[to], say_on_stderr)
    if converter is not None:
        return converter
    named = os.environ.get(VARIABLES[to])
    return Path(named) if named else None


def _either() -> str:
    return " and ".join(VARIABLES)
