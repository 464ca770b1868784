"""Structures: what scripts pass in lists, tuples and dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def flatten(value: Any) -> list[Any]:
    """The leaves: dictionaries by sorted keys, as TensorFlow has them."""
    if isinstance(value, Mapping):
        return [leaf for name in sorted(value) for leaf in flatten(value[name])]
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in flatten(one)]
    return [value]


def pack(like: Any, leaves: list[Any]) -> Any:
    """A structure like another, of these leaves."""
    return _packed(like, iter(leaves))


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
