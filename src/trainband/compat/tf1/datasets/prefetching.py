"""Prefetching: elements computed by a thread, ahead of those who want them."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from trainband.compat.tf1.datasets.elements import Element, Elements
from trainband.compat.tf1.graphs.deadline import wait_for

JOIN_S = 2.0
"""How long the end of a session waits for the thread."""


class Prefetching:
    """Iterates over elements that a thread takes from their source, at most `size` ahead. Errors come in their place.

    The thread begins with the first element that is wanted.
    """

    def __init__(self, elements: Elements, size: int) -> None:
        self._elements = elements
        self._size = size
        self._ready: deque[tuple[Element | None, BaseException | None]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._ended = False

    def __iter__(self) -> Elements:
        return self

    def __next__(self) -> Element:
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._fill, name="dataset-prefetch", daemon=True)
                self._thread.start()
            wait_for(self._changed, lambda: bool(self._ready) or self._closed or self._ended, "A prefetched dataset")
            if not self._ready:
                raise StopIteration
            element, failure = self._ready.popleft()
            if len(self._ready) <= self._size // 2:
                self._changed.notify_all()
        if failure is not None:
            if isinstance(failure, StopIteration):
                self._ended = True
            raise failure
        assert element is not None
        return element

    def _fill(self) -> None:
        while True:
            found: tuple[Any, Any]
            try:
                found = (next(self._elements), None)
            except BaseException as exc:
                found = (None, exc)
            with self._changed:
                self._ready.append(found)
                if len(self._ready) == 1:
                    self._changed.notify_all()
                while not self._closed and len(self._ready) >= self._size:
                    self._changed.wait()
                if self._closed or isinstance(found[1], StopIteration):
                    return

    def close(self) -> None:
        """Ends the thread; one that waits for the source ends with it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)
