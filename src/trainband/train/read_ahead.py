"""ReadAhead: a thread that prepares the next items while the training computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from trainband.runtime import SYSTEM, Runtime

Item = TypeVar("Item")


class ReadAhead(Generic[Item]):
    """A thread that prepares items; it ends with the items, with an error, or when it is told to stop."""

    def __init__(self, pull: Callable[[], Item], size: int, runtime: Runtime = SYSTEM) -> None:
        self._pull: Callable[[], Item] | None = pull
        self._size = size
        self._changed = runtime.condition()
        self._items: deque[Item | BaseException | None] = deque()  # None: idle from here
        self._stopped = False
        self._started = False
        self._thread = runtime.thread(self._run, "trainband-feed")

    def start(self) -> None:
        """Begins to read, unless it has begun."""
        if not self._started:
            self._started = True
            self._thread.start()

    def get(self, idle: Callable[[], object] | None) -> Item:
        """Waits for the next item; raises any exception from the thread."""
        self.start()
        while True:
            with self._changed:
                while not self._items:
                    if self._stopped:
                        raise StopIteration  # closed from another thread
                    self._changed.wait()
                item = self._items.popleft()
                self._changed.notify_all()
            if isinstance(item, BaseException):
                self._thread.join()
                raise item
            if item is not None:
                return item
            if idle is not None:
                idle()

    def enqueue_idle(self) -> None:
        """Tells the consumer that the item after the prepared ones will take a while."""
        self._enqueue(None)

    def stop(self) -> None:
        """Asks the thread to end."""
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Waits for its end; returns whether it has ended."""
        if self._started:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        # The feed holds this object: a cycle would keep the iterator, and its threads, alive after both.
        pull, self._pull = self._pull, None
        assert pull is not None
        while True:
            with self._changed:
                while len(self._items) >= self._size and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
            try:
                item: Any = pull()
            except BaseException as exc:  # for the consumer's thread, of any kind
                self._enqueue(exc)
                return
            self._enqueue(item)
            del item  # the training may want its memory before the next one is ready

    def _enqueue(self, item: Item | BaseException | None) -> None:
        with self._changed:
            if not self._stopped:
                self._items.append(item)
                self._changed.notify_all()
