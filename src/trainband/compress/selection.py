"""Selection: the tensors of a model to compress, and the axis of their output channels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from trainband.errors import ModelError

SMALLEST = 256
"""Elements of the smallest compressed tensor: for smaller ones, scales and headers outweigh the savings."""

_TABLE = re.compile(r"embed", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The tensors to compress: floating-point ones with two axes or more and enough elements.

    Attributes:
      only: a regular expression that must occur in a tensor's name (`hidden/kernel`), or several; all, if empty.
      exclude: the same, for names to leave out.
      smallest: the fewest elements.
    """

    only: str | tuple[str, ...] = ()
    exclude: str | tuple[str, ...] = ()
    smallest: int = SMALLEST

    def __post_init__(self) -> None:
        for name in ("only", "exclude"):
            for pattern in _several(getattr(self, name)):
                try:
                    re.compile(pattern)
                except re.error as exc:
                    raise ModelError(f"{name}={pattern!r} is not a regular expression: {exc}.") from exc
        if self.smallest < 1:
            raise ModelError(f"smallest must be a number of elements, 1 or more, got {self.smallest!r}.")

    def named(self, name: str) -> bool:
        """Whether the name is selected."""
        only, exclude = _several(self.only), _several(self.exclude)
        return (not only or any(re.search(p, name) for p in only)) and not any(re.search(p, name) for p in exclude)

    def includes(self, name: str, leaf: Any) -> bool:
        """Whether a tensor is compressed. `leaf`: anything with a shape and a dtype."""
        size = 1
        for length in leaf.shape:
            size *= length
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return bool(floating and len(leaf.shape) >= 2 and size >= self.smallest and self.named(name))

    def require(self, tensors: Mapping[str, Any], doing: str) -> list[str]:
        """Returns the names of the tensors to compress.

        Args:
          tensors: by name; anything with a shape and a dtype.
          doing: what is done to them, such as "quantise".

        Raises:
          ModelError: there are none; or a pattern of `only` matches integers, or nothing at all.
        """
        for pattern in _several(self.only):
            meant = [name for name in tensors if re.search(pattern, name)]
            if not meant:
                raise ModelError(f"only={pattern!r} matches no tensor; the tensors are {_listed(tensors)}.")
            for name in meant:
                if not jnp.issubdtype(tensors[name].dtype, jnp.floating):
                    raise ModelError(
                        f"cannot {doing} {name}, whose dtype is {tensors[name].dtype}; "
                        f"leave it out of only={pattern!r}."
                    )
        found = [name for name, leaf in tensors.items() if self.includes(name, leaf)]
        if not found:
            raise ModelError(
                f"there is nothing to {doing}: no floating-point tensor with two axes or more and at least "
                f"{self.smallest} elements is selected; the tensors are {_listed(tensors)}."
            )
        return found


def channel_axis(name: str, shape: tuple[int, ...]) -> int:
    """Returns the axis of a tensor's output channels, by its name alone: the last, or an embedding's rows."""
    return 0 if len(shape) == 2 and _TABLE.search(name) else len(shape) - 1


def _several(patterns: str | tuple[str, ...]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
