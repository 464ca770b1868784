"""Structures of elements: tuples, dictionaries and objects of several tensors. A list is a leaf, as in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

LEAF = None
"""Stands for a leaf in the structure of a block."""


class Composite:
    """Stands for an object of several tensors, such as a sparse one, in a structure.

    Args:
      kind: its class, which makes it of its parts.
    """

    def __init__(self, kind: Any, parts: Sequence[Any]) -> None:
        self.kind, self.parts = kind, list(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Composite) and (self.kind, self.parts) == (other.kind, other.parts)

    def __hash__(self) -> int:
        return hash(self.kind)

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({', '.join(map(repr, self.parts))})"


def parts_of(structure: Any) -> list[Any] | None:
    """The parts of a structure; `None` for a leaf."""
    if isinstance(structure, Mapping):
        return [structure[key] for key in sorted(structure)]
    if isinstance(structure, tuple):
        return list(structure)
    if isinstance(structure, Composite):
        return structure.parts
    if hasattr(structure, "__trainband_parts__"):
        return list(structure.__trainband_parts__())
    return None


def flatten(structure: Any) -> list[Any]:
    """The leaves, in order; of dictionaries, by key."""
    parts = parts_of(structure)
    return [structure] if parts is None else [leaf for part in parts for leaf in flatten(part)]


def pack(structure: Any, leaves: Sequence[Any]) -> Any:
    """Other leaves in the form of a structure."""
    if structure is None:
        return leaves[0]
    if type(structure) is tuple and all(part is None for part in structure):
        return tuple(leaves)
    return _packed(structure, iter(leaves))


def _packed(structure: Any, leaves: Iterator[Any]) -> Any:
    parts = parts_of(structure)
    if parts is None:
        return next(leaves)
    packed = [_packed(part, leaves) for part in parts]
    if isinstance(structure, Mapping):
        found = dict(zip(sorted(structure), packed, strict=True))
        ordered = {key: found[key] for key in structure}
        return ordered if type(structure) is dict else _like(structure, ordered)
    if isinstance(structure, tuple):
        return type(structure)(*packed) if hasattr(structure, "_fields") else tuple(packed)
    kind = structure.kind if isinstance(structure, Composite) else type(structure)
    return Composite(kind, packed) if any(part is LEAF for part in packed) else kind.of_parts(*packed)


def _like(structure: Any, ordered: dict[Any, Any]) -> Any:
    try:
        return type(structure)(ordered)
    except TypeError:
        return ordered


def template(structure: Any) -> Any:
    """The form alone, with `LEAF` for each leaf."""
    return pack(structure, [LEAF] * len(flatten(structure)))


def map_structure(function: Callable[[Any], Any], structure: Any) -> Any:
    """A structure of what a function gives for the leaves of another."""
    return pack(structure, [function(leaf) for leaf in flatten(structure)])


def along(structure: Any, other: Any) -> list[Any]:
    """The parts of something else where the leaves of a structure are, such as shapes, which may be tuples.

    Raises:
      ValueError: it has another structure.
    """
    parts = parts_of(structure)
    if parts is None:
        return [other]
    if isinstance(structure, Mapping):
        if not isinstance(other, Mapping) or set(other) != set(structure):
            raise ValueError(f"The two structures don't have the same keys: {sorted(structure)}, and {other!r}.")
        others = [other[key] for key in sorted(structure)]
    else:
        others = list(other) if isinstance(other, list | tuple) else parts_of(other) or [other]
    if len(others) != len(parts):
        raise ValueError(f"The two structures don't have the same number of elements: {structure!r}, and {other!r}.")
    return [leaf for part, one in zip(parts, others, strict=True) for leaf in along(part, one)]


def sparse_places(structure: Any) -> list[int]:
    """Of each object of several tensors, which leaf is its first."""
    found: list[int] = []

    def walk(one: Any, place: int) -> int:
        parts = parts_of(one)
        if parts is None:
            return place + 1
        if not isinstance(one, Mapping | tuple):
            found.append(place)
        for part in parts:
            place = walk(part, place)
        return place

    walk(structure, 0)
    return found
