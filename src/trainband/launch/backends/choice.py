"""Choosing a backend by its name and options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, cast, get_type_hints

from trainband.errors import ClusterError
from trainband.launch.backend import Backend

BACKENDS = {"kubernetes": "Kubernetes", "local": "Local", "ray": "Ray", "slurm": "Slurm", "ssh": "Ssh"}
"""The class of each backend, in the module with its name."""


def choose(name: str, options: Mapping[str, object] | None = None) -> Backend:
    """Returns the backend with this name.

    Args:
      name: one of `BACKENDS`.

    Raises:
      ClusterError: the backend or the option is unknown.
    """
    kind = _kind(name)
    given = dict(options or {})
    known = [field.name for field in dataclasses.fields(kind)]
    for option in given:
        if option not in known:
            alike = get_close_matches(option, known, 1, 0.7)
            meant = f" Did you mean {alike[0]}?" if alike else ""
            raise ClusterError(f"{name} has no option {option!r}, only {', '.join(known)}.{meant}")
    return cast(Backend, kind(**given))


def read_options(name: str, texts: Sequence[str]) -> dict[str, object]:
    """Parses options from the command line.

    Args:
      texts: each `option=value`; dashes count as underscores.

    Raises:
      ClusterError: the backend is unknown, or an option or a value is invalid.
    """
    hints = get_type_hints(_kind(name))
    found: dict[str, object] = {}
    for text in texts:
        option, equals, value = text.partition("=")
        option = option.replace("-", "_")
        if not equals:
            raise ClusterError(f"-o {text}: write -o {option}=VALUE.")
        found[option] = _read(value, hints.get(option, str), f"-o {text}")
    return found


def _read(value: str, kind: Any, where: str) -> object:
    kinds = str(kind)
    if kind is bool:
        if value not in ("true", "false"):
            raise ClusterError(f"{where}: write true or false.")
        return value == "true"
    try:
        if "int" in kinds:
            return int(value)
        if "float" in kinds:
            return float(value)
    except ValueError:
        raise ClusterError(f"{where}: {value!r} is not a number.") from None
    return tuple(value.split(",")) if "tuple" in kinds else value


def _kind(name: str) -> type[Any]:
    if name not in BACKENDS:
        raise ClusterError(f"unknown backend {name!r}; choose one of {', '.join(BACKENDS)}.")
    found = getattr(import_module(f"trainband.launch.backends.{name}"), BACKENDS[name])
    assert isinstance(found, type)
    return found
