"""The names of the results of operations that have several."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

NAMED: dict[str, Callable[..., Any]] = {
    "TopKV2": namedtuple("TopKV2", "values indices"),
    "Unique": namedtuple("Unique", "y idx"),
    "UniqueWithCounts": namedtuple("UniqueWithCounts", "y idx count"),
    "Qr": namedtuple("Qr", "q r"),
    "ListDiff": namedtuple("ListDiff", "out idx"),
}
"""Types of an operation's results, by its type."""
