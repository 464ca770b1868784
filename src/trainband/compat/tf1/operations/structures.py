"""`tf.contrib.framework.nest`: functions on nested structures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainband.compat.tf1.graphs.nest import flatten as flatten
from trainband.compat.tf1.graphs.nest import pack_like


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
      TypeError: they differ only in the types of their parts, such as list and tuple.
    """
    leaves = list(range(len(flatten(nest1))))
    text = f"The two structures don't have the same nested structure: {nest1}, {nest2}"
    if len(leaves) != len(flatten(nest2)) or _shape(nest1) != _shape(nest2):
        raise ValueError(text)
    if check_types and pack_like(nest1, leaves) != pack_like(nest2, leaves):
        raise TypeError(text)


def _shape(structure: Any) -> Any:
    """Its form, whatever types its parts have."""
    if isinstance(structure, Mapping):
        return [(key, _shape(structure[key])) for key in sorted(structure)]
    if isinstance(structure, list | tuple):
        return [_shape(one) for one in structure]
    return [None] * len(flatten(structure))
