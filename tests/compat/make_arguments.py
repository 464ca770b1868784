"""Writes golden/arguments.txt: the arguments of TensorFlow 1's public functions and classes, a name a line.

Run with a Python that has TensorFlow 2.21: `TF_USE_LEGACY_KERAS=1 python tests/compat/make_arguments.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

PATH = Path(__file__).parent / "golden" / "arguments.txt"
LEFT_OUT = (
    "raw_ops",
    "keras",
    "compat",
    "mixed_precision",
    "experimental",
    "quantization",
    "tpu",
    "mlir",
    "lite",
    "mock",
    "app",
    "flags",
)


def arguments(space: ModuleType, path: str, seen: set[int]) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of a namespace, and of those within it, with their arguments."""
    seen.add(id(space))
    for name in sorted(dir(space)):
        value: Any = getattr(space, name)
        if isinstance(value, ModuleType):
            if name not in LEFT_OUT and name[0] != "_" and id(value) not in seen:
                yield from arguments(value, f"{path}.{name}", seen)
        elif callable(value) and not name.startswith("_"):
            try:
                parameters = inspect.signature(value.__init__ if inspect.isclass(value) else value).parameters
            except (TypeError, ValueError):
                continue
            kinds = [one.name for one in parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
            if len(kinds) == len(parameters):
                yield f"{path}.{name}", [one for one in kinds if one != "self"]


if __name__ == "__main__":
    import tensorflow.compat.v1 as tf

    found = dict(arguments(tf, "tf", set()))
    PATH.write_text("".join(f"{name}: {' '.join(names)}\n" for name, names in sorted(found.items())), encoding="utf-8")
