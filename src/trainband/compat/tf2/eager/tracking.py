"""Who wants to know that an object has got another attribute: checkpoints that are restored as variables are made."""

from __future__ import annotations

import weakref
from typing import Protocol


class Watcher(Protocol):
    """Something that looks again when objects have changed."""

    def look_again(self) -> None:
        """An object of the script's has got an attribute, or variables."""
        ...


WATCHERS: weakref.WeakSet[Watcher] = weakref.WeakSet()
"""Objects to notify; others keep them alive."""


def changed() -> None:
    """Tells them."""
    for one in list(WATCHERS):
        one.look_again()
