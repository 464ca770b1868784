"""Structures: what scripts pass in lists, tuples and dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def flatten(structure: Any, expand_composites: bool = False) -> list[Any]:
    """The leaves: dictionaries by sorted keys, as TensorFlow has them."""
    del expand_composites
    if isinstance(structure, Mapping):
        return [leaf for name in sorted(structure) for leaf in flatten(structure[name])]
    if isinstance(structure, list | tuple):
        return [leaf for one in structure for leaf in flatten(one)]
    return [structure]


def pack(structure: Any, flat_sequence: list[Any], expand_composites: bool = False) -> Any:
    """A structure like another, of these leaves."""
    del expand_composites
    return _packed(structure, iter(flat_sequence))


def is_nested(seq: Any) -> bool:
    """Whether it has parts: a list, a tuple or a dictionary."""
    return isinstance(seq, Mapping | list | tuple)


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True, expand_composites: bool = False) -> None:
    """Demand that two structures are alike.

    Raises:
      TypeError: a part of one is of another kind.
      ValueError: they have other parts.
    """
    if is_nested(nest1) != is_nested(nest2):
        raise ValueError(f"The two structures don't have the same nested structure: {nest1!r} and {nest2!r}")
    if not is_nested(nest1):
        return
    if check_types and type(nest1) is not type(nest2) and not (isinstance(nest1, dict) and isinstance(nest2, dict)):
        raise TypeError(f"The two structures don't have the same sequence type: {type(nest1)} and {type(nest2)}")
    same = set(nest1) == set(nest2) if isinstance(nest1, Mapping) else len(nest1) == len(nest2)
    if not same:
        raise ValueError(f"The two structures don't have the same nested structure: {nest1!r} and {nest2!r}")
    for name in nest1 if isinstance(nest1, Mapping) else range(len(nest1)):
        assert_same_structure(nest1[name], nest2[name], check_types, expand_composites)


def _packed(like: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(like, Mapping):
        found = {name: _packed(like[name], leaves) for name in sorted(like)}
        return type(like)((name, found[name]) for name in like)  # type: ignore[call-arg]
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*(_packed(one, leaves) for one in like))
    if isinstance(like, list | tuple):
        return type(like)(_packed(one, leaves) for one in like)
    return next(leaves)


def map_structure(function: Callable[..., Any], *structures: Any, **_: Any) -> Any:
    """A structure of what a function gives for the leaves of others, which are alike."""
    return pack(structures[0], [function(*leaves) for leaves in zip(*map(flatten, structures), strict=True)])
