"""`strategy.scope()`: models that are made in it are the strategy's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainband.keras.distributed import Distributed
from trainband.keras.inside import JAXTrainer
from trainband.strategies.base import Strategy


@contextmanager
def models_belong_to(strategy: Strategy, **settings: Any) -> Iterator[None]:
    """A context in which every Keras model that is made is trained by a strategy.

    Keras calls the `__init__` of its trainer for each model and tells nobody: so that is what is extended meanwhile.
    """
    init = JAXTrainer.__init__

    def init_and_attach(self: Any) -> None:
        init(self)
        Distributed(self, strategy, **settings).attach()

    JAXTrainer.__init__ = init_and_attach
    try:
        yield
    finally:
        JAXTrainer.__init__ = init
