"""Nested lists, tuples, dictionaries and objects: flattened, and put together again.

A class takes part by two methods: `_nest_flatten()` returns a list of what an object carries, each perhaps nested
again, and `_nest_pack(values)` makes a new object like this one from as many other values. Branches and loops carry
such objects; what a session fetches does not look into them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
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
