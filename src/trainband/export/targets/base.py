"""Target: the seam for writing an exported format, and for loading it again as a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from trainband.model.inference import InferenceProgram

Run = Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]
"""Inputs by name -> outputs by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of formats; each format refuses those it lacks.

    Attributes:
      converter: a Python interpreter whose environment has the format's converter (TensorFlow for `saved-model`,
        litert-converter for `litert`), if this one does not.
      int8: 8-bit weights, with one scale per output channel.
    """

    converter: Path | None = None
    int8: bool = False


NO_OPTIONS = Options()


class Target(Protocol):
    """One format."""

    name: str
    """Name on the command line."""

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        """Raises:
        YourError: the format has no such option.
        """

    def write(self, program: InferenceProgram, directory: Path) -> dict[str, Any]:
        """Writes its files into an empty directory.

        Returns:
          The format's data for the manifest: its versions, and the role of each file. JSON.

        Raises:
          ModelError: the format cannot hold the program; names the operation, and its source line.
          YourError: a library is missing; names the extra.
        """

    def load(self, directory: Path, written: Mapping[str, Any]) -> Run:
        """Loads the files as users do, without the program. `written`: the result of `write`."""
