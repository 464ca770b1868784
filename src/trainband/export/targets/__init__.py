"""The formats that a program is exported to, one per file."""

from __future__ import annotations

from importlib import import_module

from trainband.errors import YourError
from trainband.export.targets.base import NO_OPTIONS, Options, Target

TARGETS = {"stablehlo": "StableHLO", "onnx": "ONNX", "saved-model": "SavedModel", "litert": "LiteRT"}
"""Module and class of each."""


def target(name: str, options: Options = NO_OPTIONS) -> Target:
    """Returns the target of that name; its libraries are imported when it is used.

    Raises:
      YourError: it is unknown, or has no such option.
    """
    if name not in TARGETS:
        raise YourError(f"there is no export to {name!r}; the targets are {', '.join(TARGETS)}.")
    module = import_module(f"trainband.export.targets.{name.replace('-', '_')}")
    made: Target = getattr(module, TARGETS[name])(options)
    return made
