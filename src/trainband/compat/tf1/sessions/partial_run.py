"""PartialRun: a run whose parts are asked for, and fed, one after the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation, Tensor


class PartialRun:
    """What a run in parts has been given and has found so far.

    A part is computed when it is asked for, from all that was fed before it and from the values of earlier parts.

    Args:
      fetches, feeds: what may be asked for and fed, each once.
    """

    def __init__(self, fetches: Collection[Any], feeds: Collection[Tensor]) -> None:
        self._open, self._to_feed = set(fetches), set(feeds)
        self._known: dict[Tensor, Any] = {}

    def feeds(self, elements: Collection[Any], given: Mapping[Tensor, Any]) -> dict[Tensor, Any]:
        """All that is known for the next part.

        Raises:
          InvalidArgumentError: it asks for, or feeds, what was not announced, or does so twice.
        """
        for one in given:
            if one not in self._to_feed:
                raise InvalidArgumentError(
                    None, one.op, f"The feed {one.name} had already been fed, or was not set up."
                )
        for one in elements:
            if one not in self._open:
                op = one if isinstance(one, Operation) else one.op
                raise InvalidArgumentError(None, op, f"{one.name} was already fetched, or was not set up.")
        self._to_feed -= set(given)
        self._known.update(given)
        return dict(self._known)

    def found(self, elements: Collection[Any], values: Collection[Any]) -> None:
        """Notes what a part has given."""
        for one, value in zip(elements, values, strict=True):
            self._open.discard(one)
            if isinstance(one, Tensor) and not one.op.type.startswith("Variable"):
                self._known[one] = value
