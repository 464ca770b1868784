"""Target: the seam behind which each format of an export is written, and read again to be tried."""

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
    """What formats may be told; each refuses what it has not.

    Attributes:
      converter: a Python interpreter whose environment has what the format is converted with (TensorFlow for
        `saved-model`, litert-converter for `litert`), where that is not in this one.
      int8: weights of 8 bits, each output channel with a scale of its own.
    """

    converter: Path | None = None
    int8: bool = False


NO_OPTIONS = Options()


class Target(Protocol):
    """One format."""

    name: str
    """As on the command line."""

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        """Raises:
        YourError: the format has no such option.
        """

    def write(self, program: InferenceProgram, directory: Path) -> dict[str, Any]:
        """Writes its files into an empty directory.

        Returns:
          what the manifest is to say of the format: its versions, and which file is what. JSON.

        Raises:
          ModelError: the format cannot hold the program; says which operation, and where it was written.
          YourError: a library is missing; names the extra.
        """

    def load(self, directory: Path, written: Mapping[str, Any]) -> Run:
        """Loads what was written as its users do, without the program. `written`: what `write` returned."""
