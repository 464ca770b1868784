"""`strategy.scope()`, as in TensorFlow: models made in it belong to the strategy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainband.strategies.base import Strategy

FRONT_ENDS = ("trainband.keras",)
"""Modules whose `models_belong_to(strategy, **settings)` is a context for the models of one framework. Loaded here by
name: they are above the strategies, and users without Keras must not need it."""


class Scoped:
    """A strategy with a `scope`."""

    @contextmanager
    def scope(self: Strategy, **settings: Any) -> Iterator[Strategy]:
        """Returns a context: a Keras model made in it runs `fit`, `evaluate` and `predict` on this strategy.

        Args:
          settings: `checkpoint_dir`, `save_steps`, `save_secs` of every training run: see `MonitoredSession`.

        Raises:
          ModelError: Keras is not installed, or its backend is not JAX.
        """
        with ExitStack() as stack:
            for front_end in FRONT_ENDS:
                stack.enter_context(import_module(front_end).models_belong_to(self, **settings))
            yield self
