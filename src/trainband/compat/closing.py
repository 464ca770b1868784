"""What ends with something else: threads and files of a pass over data, which end with the process at the latest."""

from __future__ import annotations

import atexit
import weakref
from typing import Any, Protocol


class Closing(Protocol):
    """Something that must be ended, such as a thread."""

    def close(self) -> None:
        """Ends it. Idempotent."""
        ...


class Closer:
    """Closes things when it is closed itself, or when the process ends."""

    def __init__(self) -> None:
        self._closing: weakref.WeakSet[Any] = weakref.WeakSet()

    def closes(self, thing: Closing) -> None:
        """Closes something at the end of the pass, or of the process."""
        self._closing.add(thing)
        _open.add(thing)

    def close(self) -> None:
        """Ends the pass. Idempotent."""
        for thing in list(self._closing):
            thing.close()


_open: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for thing in list(_open):
        thing.close()
