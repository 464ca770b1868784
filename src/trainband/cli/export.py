"""`trainband export`: a model for other programs, from a checkpoint and a function."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainband.cli.options import pop_options
from trainband.cli.predictor import TracingOptions, predictor_from, tracing_options
from trainband.cli.terminal import console_for_people
from trainband.errors import YourError
from trainband.export.targets import TARGETS

if TYPE_CHECKING:
    from trainband.model.inference import InferenceProgram

VARIABLES = {"litert": "TRAINBAND_LITERT_PYTHON", "saved-model": "TRAINBAND_TENSORFLOW_PYTHON"}
"""The environment variable that names the Python of each format's converter."""

# Not the docstring: click's \b, which keeps line breaks, does not work in a raw docstring.
_HELP = """Export the newest checkpoint in SOURCE, with your function, to the directory OUT.

SOURCE is a checkpoint, a directory of checkpoints, or a .keras file, which needs no --model. Before the export is put
in place, it is loaded again and compared with the function itself.

\b
stablehlo    a program for any JAX, with the weights and load.py, which
             needs only JAX to run it.
onnx         model.onnx, for ONNX Runtime and many others.
litert       model.tflite, for phones and small machines.
saved-model  for TensorFlow and TensorFlow Serving.

Three formats need more: `pip install 'trainband[onnx]'`, `pip install 'trainband[litert]'` and litert-converter,
and TensorFlow. The last two come from the environment of --converter, or of $TRAINBAND_LITERT_PYTHON and
$TRAINBAND_TENSORFLOW_PYTHON; --make-converter makes one and installs them there.
"""


@click.command(help=_HELP, short_help="Export a model for other programs.")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--model",
    metavar="FILE.py:NAME",
    help="A function predict(params, batch), a trainband.Predictor, or a Keras model, in a file or a module.",
)
@click.option("--to", default="stablehlo", show_default=True, type=click.Choice(list(TARGETS)), help="The format.")
@tracing_options
@click.option(
    "--int8", is_flag=True, help="8-bit weights (litert; for others, compress first). Results may differ by 10%."
)
@click.option(
    "--converter",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The Python of an environment that has the format's converter.",
)
@click.option(
    "--make-converter",
    type=click.Path(file_okay=False, path_type=Path),
    help="Use the format's converter in this virtual environment; make and fill it if needed.",
)
@click.option("--force", is_flag=True, help="Replace an earlier export in OUT.")
def export(
    source: Path,
    out: Path,
    model: str | None,
    to: str,
    int8: bool,
    converter: Path | None,
    make_converter: Path | None,
    force: bool,
    **given: Any,
) -> None:
    """The command; `_HELP` is its documentation."""
    # The machine's accelerators belong to the training that runs there; an export needs none.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("KERAS_BACKEND", "jax")
    from trainband.export.exporting import TOLERANCE, TOLERANCE_INT8, export_program
    from trainband.export.targets.base import Options

    program = _program(source, model, to, **pop_options(TracingOptions, given).read())
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
        raise YourError(f"{source} holds only weights; name their function or model: --model FILE.py:NAME.")
    from trainband.export.source import program_of

    # LiteRT's converter folds constants, so a packed bitmap would become larger than its values.
    return program_of(source, predictor_from(model), unpack=to == "litert", **tracing)


def _converter(to: str, converter: Path | None, make: Path | None) -> Path | None:
    """The Python that converts to a format: given, made, or from the environment variable; `None` for this one."""
    from trainband.export.converters.environment import PACKAGES, make_environment
    from trainband.runtime.waiting import say_on_stderr

    if to not in PACKAGES:
        if converter is not None or make is not None:
            raise YourError(
                f"--to {to} needs no converter; --converter and --make-converter are for {' and '.join(VARIABLES)}."
            )
        return None
    if converter is not None and make is not None:
        raise YourError("--converter and --make-converter contradict each other; give one of them.")
    if make is not None:
        return make_environment(make, PACKAGES[to], say_on_stderr)
    if converter is not None:
        return converter
    named = os.environ.get(VARIABLES[to])
    return Path(named) if named else None
