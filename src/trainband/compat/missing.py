"""What is not there: errors that name it, say whether it is planned, and list the nearest thing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from types import ModuleType

PLANNED = (
    "tf.data",
    "tf.TensorArray",
    "tf.nn.dynamic_rnn",
    "tf.nn.rnn_cell",
    "tf.estimator",
    "tf.image",
    "tf.keras",
)
"""Names, with all that is below them, which are meant to come."""


class MissingName(AttributeError):
    """A name of TensorFlow that is not there."""


class MissingModule(ModuleNotFoundError):
    """A module of TensorFlow that is not there."""


def is_planned(name: str) -> bool:
    """Whether a name such as `tf.data.Dataset` is meant to come."""
    return any(name == planned or name.startswith(f"{planned}.") for planned in PLANNED)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """At most three known names that look like this one, the most alike first."""
    last = name.rpartition(".")[2]
    by_last: dict[str, list[str]] = {}
    for one in known:
        by_last.setdefault(one.rpartition(".")[2].lower(), []).append(one)
    same = by_last.get(last.lower(), [])
    alike = difflib.get_close_matches(last.lower(), by_last, n=3, cutoff=0.6)
    found = [*same, *(one for key in alike for one in by_last[key] if one not in same)]
    return [one for one in found if one != name][:3]


def describe(name: str, known: Iterable[str]) -> str:
    """A sentence about a missing name: what, whether it is planned, what comes nearest."""
    planned = "it is planned" if is_planned(name) else "it is not planned"
    close = nearest(name, known)
    advice = f"the nearest: {', '.join(close)}" if close else "nothing here is like it"
    return f"{name} is not in trainband's TensorFlow 1 face ({planned}; {advice}). docs/compat.md has the whole table."


def missing_name(module: ModuleType | str, name: str, known: Iterable[str]) -> MissingName:
    """The error for an attribute that a namespace does not have."""
    where = module if isinstance(module, str) else module.__name__
    return MissingName(describe(f"{where}.{name}", known), name=name)
