"""Errors for missing names: they list the closest ones that exist."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from types import ModuleType


class MissingName(AttributeError):
    """A name of TensorFlow that trainband lacks."""


class MissingModule(ModuleNotFoundError):
    """A module of TensorFlow that trainband lacks."""


def first_missing(
    path: str, child: Callable[[str, str], str | None], locate: Callable[[str, str], object]
) -> str | None:
    """The first part of a dotted name that is not there, as far as it; `None` if all is.

    Args:
      child: the module or namespace of a name within another; `None` if it is not one.
      locate: the place of a name of a module; `None` if it is not there.
    """
    module, *rest = path.split(".")
    for part in rest:
        inner = child(module, part)
        if inner is None:
            return None if locate(module, part) else f"{module}.{part}"
        module = inner
    return None


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three known names that resemble this one, the closest first."""
    last = name.rpartition(".")[2]
    by_last: dict[str, list[str]] = {}
    for one in known:
        by_last.setdefault(one.rpartition(".")[2].lower(), []).append(one)
    same = by_last.get(last.lower(), [])
    alike = difflib.get_close_matches(last.lower(), by_last, n=3, cutoff=0.6)
    found = [*same, *(one for key in alike for one in by_last[key] if one not in same)]
    return [one for one in found if one != name][:3]


def describe(name: str, known: Iterable[str], version: int = 1, other: int | None = None) -> str:
    """Say that a name is missing in the front end for a version of TensorFlow, and which names come closest.

    Args:
      other: the version whose front end has it.
    """
    close = nearest(name, known)
    advice = f"the nearest: {', '.join(close)}" if close else "no name is similar"
    where = f"trainband's TensorFlow {version} front end"
    text = f"{name} is not in {where} (it is not planned; {advice}). docs/compat.md lists all names."
    return text if other is None else f"{text} --tensorflow {other} has it."


def missing_name(
    module: ModuleType | str, name: str, known: Iterable[str], version: int = 1, other: int | None = None
) -> MissingName:
    """Make the error for an attribute that a namespace lacks."""
    where = module if isinstance(module, str) else module.__name__
    return MissingName(describe(f"{where}.{name}", known, version, other), name=name)
