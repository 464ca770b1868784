"""`strategy.scope()`: the strategy trains models made in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainband.keras.distributed import MARK, Distributed
from trainband.keras.keras_internals import JAXTrainer
from trainband.strategies.base import Strategy


@contextmanager
def models_belong_to(strategy: Strategy, **settings: Any) -> Iterator[None]:
    """A context in which a strategy trains every Keras model that is created.

    Keras calls its trainer's `__init__` for each model and has no other hook: so the context extends that.
    """
    init = JAXTrainer.__init__

    def init_and_attach(self: Any) -> None:
        init(self)
        if MARK not in self.__dict__:  # Keras calls this twice for a class built in functional style
            Distributed(self, strategy, **settings).attach()

    JAXTrainer.__init__ = init_and_attach
    try:
        yield
    finally:
        JAXTrainer.__init__ = init
