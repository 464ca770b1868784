"""`--model program.py:predict` and its companions: the function, and the shape of a batch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import numpy as np

from trainband.errors import DataError, ModelError, YourError

if TYPE_CHECKING:
    from trainband.model.predictor import Predictor

_Command = TypeVar("_Command", bound=Callable[..., Any])

_example_option = click.option(
    "--example",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A batch (.npy or .npz) to trace the function with and to compare results on.",
)
_input_option = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME:DTYPE[SHAPE]",
    help="In place of an example: one input of a batch, such as images:float32[batch,28,28]. Give one for each input.",
)
_batch_option = click.option(
    "--batch", type=click.IntRange(min=1), help="Examples in every call.  [default: any number]"
)


def tracing_options(command: _Command) -> _Command:
    """Adds the options of `TracingOptions` to a command."""
    return _example_option(_input_option(_batch_option(command)))


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """The inputs that a function is traced with."""

    example: Path | None
    inputs: tuple[str, ...]
    batch: int | None

    def read(self) -> dict[str, Any]:
        """Returns the arguments of `Predictor.program`.

        Raises:
          DataError: the example cannot be read.
        """
        from trainband.model.signature import TensorSpec

        inputs = tuple(TensorSpec.parsed(text, "input") for text in self.inputs)
        return {"example": example_from(self.example), "inputs": inputs, "batch": self.batch}


def predictor_from(text: str) -> Predictor:
    """The predictor that `FILE.py:NAME` or `package.module:NAME` names.

    Raises:
      YourError: there is no such file, module or name.
      ModelError: the object is not a predictor, function or Keras model.
    """
    from trainband.model.predictor import Predictor

    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise YourError(f"--model {text}: give a file and a name in it, such as program.py:predict.")
    module = _imported(where)
    try:
        found = getattr(module, name)
    except AttributeError:
        raise YourError(f"--model {text}: {where} has no {name}.") from None
    if isinstance(found, Predictor):
        return found
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(found, keras.Model):
        from trainband.keras.predictor import predictor_of

        return predictor_of(found)
    if not callable(found):
        raise ModelError(f"--model {text}: {name} is {found!r}, not a function, a Predictor or a Keras model.")
    return Predictor(found)


def example_from(path: Path | None) -> Any:
    """The batch in a file: an array, or a dict of arrays by name; `None` without a file.

    Raises:
      DataError: it is not such a file.
    """
    if path is None:
        return None
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as exc:
        raise DataError(f"{path} cannot be read as .npy or .npz: {exc}.") from exc
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        return {name: loaded[name] for name in loaded.files}


def _imported(where: str) -> Any:
    if not where.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as exc:
            if exc.name is None or not f"{where}.".startswith(f"{exc.name}."):
                raise
            raise YourError(f"--model: there is no module {where} in this environment or directory.") from None
    path = Path(where)
    if not path.is_file():
        raise YourError(f"--model: there is no file {path}.")
    sys.path.insert(0, str(path.parent.absolute()))  # as for a script: its neighbours can be imported
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
