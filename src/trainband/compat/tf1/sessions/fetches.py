"""Fetches: what a run is asked for, nested as a script likes, and its values in the same form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainband.compat.tf1.graphs.where import user_line


class Fetches:
    """One thing to fetch, or nested lists, tuples, dictionaries and attrs classes of such.

    Attributes:
      leaves: what is to be fetched, in order.
      key: equal for fetches of the same form and leaves.

    Raises:
      TypeError: it is `None`.
    """

    def __init__(self, fetches: Any) -> None:
        if fetches is None:
            raise TypeError(f"Argument `fetches` = None has invalid type NoneType. Cannot be None. (at {user_line()})")
        self._fetches = fetches
        self.leaves = list(_leaves(fetches))
        self.key = (_form(fetches), tuple(id(leaf) if not isinstance(leaf, str) else leaf for leaf in self.leaves))

    def build(self, values: Sequence[Any]) -> Any:
        """The values in this form."""
        return _pack(self._fetches, iter(values))


def _parts(fetches: Any) -> list[Any] | None:
    """What is nested in it; `None` for a leaf."""
    if isinstance(fetches, Mapping):
        return list(fetches.values())
    if isinstance(fetches, list | tuple):
        return list(fetches)
    if hasattr(type(fetches), "__attrs_attrs__"):
        return [getattr(fetches, field.name) for field in type(fetches).__attrs_attrs__]
    return None


def _leaves(fetches: Any) -> Iterator[Any]:
    parts = _parts(fetches)
    if parts is None:
        yield fetches
    else:
        for part in parts:
            yield from _leaves(part)


def _form(fetches: Any) -> Any:
    parts = _parts(fetches)
    if parts is None:
        return 0
    keys = tuple(fetches) if isinstance(fetches, Mapping) else ()
    return (type(fetches), keys, *map(_form, parts))


def _pack(fetches: Any, values: Iterator[Any]) -> Any:
    parts = _parts(fetches)
    if parts is None:
        return next(values)
    packed = [_pack(part, values) for part in parts]
    if isinstance(fetches, Mapping):
        empty = defaultdict(fetches.default_factory) if isinstance(fetches, defaultdict) else type(fetches)()
        return _filled(empty, dict(zip(fetches, packed, strict=True)))
    if isinstance(fetches, list | tuple) and not hasattr(fetches, "_fields"):
        return type(fetches)(packed)
    return type(fetches)(*packed)


def _filled(empty: Any, items: Mapping[Any, Any]) -> Any:
    for key, value in items.items():
        empty[key] = value
    return empty
