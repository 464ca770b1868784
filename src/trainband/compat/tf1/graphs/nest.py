"""Nested lists, tuples and dictionaries: flattened, and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def flatten(structure: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dictionaries, in order."""
    if isinstance(structure, Mapping):
        return [leaf for key in sorted(structure) for leaf in flatten(structure[key])]
    if isinstance(structure, list | tuple):
        return [leaf for part in structure for leaf in flatten(part)]
    return [structure]


def pack_like(structure: Any, leaves: Sequence[Any]) -> Any:
    """The leaves in the form of a structure."""
    return _pack(structure, iter(leaves))


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, Mapping):
        found = {key: _pack(structure[key], leaves) for key in sorted(structure)}
        return {key: found[key] for key in structure}
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(_pack(part, leaves) for part in structure))
    if isinstance(structure, list | tuple):
        return type(structure)(_pack(part, leaves) for part in structure)
    return next(leaves)
