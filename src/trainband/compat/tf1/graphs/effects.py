"""Python code that a compiled run calls. Its exceptions are kept, and raised when the run is over.

XLA itself reports only that some callback failed, on stderr and without the exception.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

_failures: list[BaseException] = []


def guarded(function: Callable[..., Any], otherwise: Callable[[], Any] = lambda: None) -> Callable[..., Any]:
    """Wrap a function so that it records an exception and returns `otherwise()` instead of raising."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as exc:
            _failures.append(exc)
            return otherwise()

    return call


def raise_noted() -> None:
    """Wait for all pending callbacks, and raise the first exception that was recorded."""
    jax.effects_barrier()
    if _failures:
        first = _failures[0]
        _failures.clear()
        raise first
