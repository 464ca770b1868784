"""`strategy.scope()`, as TensorFlow has it: what is made in it belongs to the strategy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainband.strategies.base import Strategy

FRONT_ENDS = ("trainband.keras",)
"""Modules whose `models_belong_to(strategy, **settings)` is a context for the models of one framework. Loaded here by
name: they stand above the strategies, and who has no Keras must not need it."""


class Scoped:
    """A strategy with a `scope`."""

    @contextmanager
    def scope(self: Strategy, **settings: Any) -> Iterator[Strategy]:
        """A context: `fit`, `evaluate` and `predict` of a Keras model that is made in it run on this strategy.

        Args:
          settings: `checkpoint_dir`, `save_steps`, `save_secs` of every training: see `MonitoredSession`.

        Raises:
          ModelError: Keras is not there, or computes with something else than JAX.
        """
        with ExitStack() as stack:
            for front_end in FRONT_ENDS:
                stack.enter_context(import_module(front_end).models_belong_to(self, **settings))
            yield self
