"""Nested lists, tuples, dictionaries and objects: flattened, and put together again.

A class takes part by two methods: `_nest_flatten()` returns a list of what an object carries, each perhaps nested
again, and `_nest_pack(values)` makes a new object like this one from as many other values. Branches and loops carry
such objects; what a session fetches does not look into them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def flatten(structure: Any, *, objects: bool = True) -> list[Any]:
    """The leaves of a nested structure, in order; of dictionaries, by key. Without `objects`, those are leaves."""
    parts = _parts(structure, objects)
    return [structure] if parts is None else [leaf for part in parts for leaf in flatten(part, objects=objects)]


def pack_like(structure: Any, leaves: Sequence[Any], *, objects: bool = True) -> Any:
    """The leaves in the form of a structure."""
    return _pack(structure, iter(leaves), objects)


def _parts(structure: Any, objects: bool) -> list[Any] | None:
    if isinstance(structure, Mapping):
        return [structure[key] for key in sorted(structure)]
    if isinstance(structure, list | tuple):
        return list(structure)
    if objects and hasattr(structure, "_nest_flatten"):
        return list(structure._nest_flatten())  # noqa: SLF001 - the protocol above
    return None


def _pack(structure: Any, leaves: Iterator[Any], objects: bool) -> Any:
    parts = _parts(structure, objects)
    if parts is None:
        return next(leaves)
    packed = [_pack(part, leaves, objects) for part in parts]
    if isinstance(structure, Mapping):
        found = dict(zip(sorted(structure), packed, strict=True))
        ordered = {key: found[key] for key in structure}
        return OrderedDict(ordered) if isinstance(structure, OrderedDict) else ordered
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*packed)
    if isinstance(structure, list | tuple):
        return type(structure)(packed)
    return structure._nest_pack(packed)  # noqa: SLF001


def is_sequence(structure: Any) -> bool:
    """Whether something is a list, a tuple or a dictionary."""
    return isinstance(structure, list | tuple | Mapping)


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """The leaves in the form of a structure.

    Raises:
      ValueError: there are more or fewer than the structure has.
    """
    leaves = list(flat_sequence) if is_sequence(flat_sequence) else [flat_sequence]
    if len(leaves) != len(flatten(structure)):
        raise ValueError(
            f"Could not pack sequence. Structure had {len(flatten(structure))} elements, but flat_sequence had "
            f"{len(leaves)} elements."
        )
    return pack_like(structure, leaves)


def map_structure(func: Callable[..., Any], *structure: Any, check_types: bool = True) -> Any:
    """A function's results for the leaves of structures, in their form."""
    del check_types
    flat = [flatten(one) for one in structure]
    return pack_like(structure[0], [func(*leaves) for leaves in zip(*flat, strict=True)])


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Fails if two structures have different forms.

    Raises:
      ValueError: they have.
    """
    del check_types
    leaves = list(range(len(flatten(nest1))))
    if len(leaves) != len(flatten(nest2)) or pack_like(nest1, leaves) != pack_like(nest2, leaves):
        raise ValueError(f"The two structures don't have the same nested structure: {nest1}, {nest2}")
