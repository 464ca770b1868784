"""Python code that a compiled run calls: what it raises is kept until the run is over, and raised then.

XLA can only say that some callback has failed; and it says so on stderr, in its own words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

_failures: list[BaseException] = []


def guarded(function: Callable[..., Any], otherwise: Callable[[], Any] = lambda: None) -> Callable[..., Any]:
    """A function that does not raise: it notes what it would have raised, and gives `otherwise()`."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as exc:
            _failures.append(exc)
            return otherwise()

    return call


def raise_noted() -> None:
    """Waits for all callbacks that are under way, and raises the first thing that one of them has noted."""
    jax.effects_barrier()
    if _failures:
        first = _failures[0]
        _failures.clear()
        raise first
