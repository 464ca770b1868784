"""Buffers: what queues keep their elements in while a session runs. Several threads use one at the same time."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainband.compat.tf1.graphs.deadline import wait_for
from trainband.compat.tf1.graphs.errors import CancelledError, DeadlineExceededError, OutOfRangeError

Element = tuple[Any, ...]
"""One value for each component of a queue."""


class Buffer:
    """Elements in the order in which they came. Whoever asks first is served first.

    Args:
      kind, name: of the queue, for errors.
      capacity: how many elements there may be before those that put wait; none if it is negative.
      least: how many stay while more may come.
    """

    def __init__(self, kind: str, name: str, capacity: int, least: int = 0) -> None:
        self.closed = False
        self._kind, self._name = kind, name
        self._capacity, self._least = capacity, least
        self._changed = threading.Condition()
        # Of those who wait in line, how many elements each still wants.
        self._putting: deque[list[int]] = deque()
        self._taking: deque[list[int]] = deque()
        self._cancelled = self._ended = False

    # --- what differs between queues

    _elements: Any = None

    def _add(self, element: Element) -> None:
        self._elements.append(element)

    def _pop(self) -> Element:
        return self._elements.popleft()  # type: ignore[no-any-return]

    def _put_back(self, elements: Sequence[Element]) -> None:
        self._elements.extendleft(reversed(elements))

    # --- what all do

    def __len__(self) -> int:
        return len(self._elements)

    def put(self, elements: Sequence[Element]) -> None:
        """Adds elements, and waits while there are too many.

        Raises:
          CancelledError: the queue is closed, or the session is.
        """
        with self._changed:
            if self.closed:
                raise CancelledError(None, None, f"{self._kind} '{self._name}' is closed.")
            with self._turn(self._putting) as is_mine:
                place = 0
                while place < len(elements):
                    self._wait(lambda: is_mine() and (self._room() > 0 or self._cancelled))
                    if self._cancelled:
                        raise CancelledError(None, None, f"{self._kind} '{self._name}': enqueue was cancelled")
                    taken = elements[place : place + self._room()]
                    for element in taken:
                        self._add(element)
                    place += len(taken)
                    if self._taking and self._is_served(self._taking[0][0]):  # waking it for each would cost more
                        self._changed.notify_all()

    def take(self, count: int, *, up_to: bool = False) -> list[Element]:
        """Removes as many elements, and waits until they are there.

        Args:
          up_to: whether there may be fewer once the queue is closed.

        Raises:
          OutOfRangeError: the queue is closed and has too few.
          DeadlineExceededError: they are not there in time; none is removed.
          CancelledError: the session is closed.
        """
        found: list[Element] = []
        with self._changed, self._turn(self._taking, count) as is_mine:
            while len(found) < count:
                try:
                    self._wait(lambda: is_mine() and (self._is_served(count - len(found)) or self._is_final()))
                except DeadlineExceededError:
                    self._put_back(found)
                    raise
                if not self._ready():
                    if up_to and found:
                        break
                    had = len(found) + len(self)
                    self._put_back(found)
                    raise OutOfRangeError(
                        None,
                        None,
                        f"{self._kind} '{self._name}' is closed and has insufficient elements (requested {count}, "
                        f"current size {had})",
                    )
                for _ in range(min(count - len(found), self._ready())):
                    found.append(self._pop())
                self._taking[0][0] = count - len(found)
                if self._putting:
                    self._changed.notify_all()
        return found

    def look(self, place: int) -> Element:
        """The element at a place, which stays there; waits until it is there.

        Raises:
          CancelledError: the session is closed.
        """
        with self._changed:
            self._wait(lambda: len(self) > place or self._is_final())
            if len(self) <= place:
                raise CancelledError(None, None, f"{self._kind} '{self._name}' is closed.")
            found: Element = self._elements[place]
            return found

    def drop(self) -> None:
        """Removes all elements."""
        with self._changed:
            self._elements.clear()
            self._changed.notify_all()

    def finish(self, cancel: bool = False) -> None:
        """Closes the queue: nothing more comes, except what threads already wait to put, unless they are cancelled."""
        with self._changed:
            self.closed = True
            self._cancelled = self._cancelled or cancel
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waiting, because the session ends."""
        with self._changed:
            self.closed = self._cancelled = self._ended = True
            self._changed.notify_all()

    def _room(self) -> int:
        return len(self._elements) + 1 if self._capacity < 0 else self._capacity - len(self._elements)

    def _ready(self) -> int:
        """How many elements may be taken now."""
        return max(0, len(self._elements) - (0 if self.closed else self._least))

    def _is_served(self, count: int) -> bool:
        """Whether so many are there, or no more fit in."""
        ready = self._ready()
        return ready >= count or (ready > 0 and self._room() <= 0)

    def _is_final(self) -> bool:
        return self._ended or (self.closed and (self._cancelled or not self._putting))

    def _wait(self, until: Callable[[], bool]) -> None:
        wait_for(self._changed, lambda: self._ended or until(), f"{self._kind} '{self._name}'")
        if self._ended:
            raise CancelledError(None, None, f"{self._kind} '{self._name}': the session is closed")

    @contextmanager
    def _turn(self, line: deque[list[int]], count: int = 0) -> Iterator[Callable[[], bool]]:
        ticket = [count]
        line.append(ticket)
        try:
            yield lambda: line[0] is ticket
        finally:
            for place, one in enumerate(line):
                if one is ticket:
                    del line[place]
                    break
            if line or self.closed:
                self._changed.notify_all()


class Fifo(Buffer):
    """First in, first out."""

    def __init__(self, kind: str, name: str, capacity: int) -> None:
        super().__init__(kind, name, capacity)
        self._elements: deque[Element] = deque()


class Shuffled(Buffer):
    """In random order."""

    def __init__(self, kind: str, name: str, capacity: int, least: int, seed: int | None) -> None:
        super().__init__(kind, name, capacity, least)
        self._elements: list[Element] = []
        self._random = random.Random(seed)

    def _pop(self) -> Element:
        elements = self._elements
        place = int(self._random.random() * len(elements))
        elements[place], elements[-1] = elements[-1], elements[place]
        return elements.pop()

    def _put_back(self, elements: Sequence[Element]) -> None:
        self._elements.extend(elements)


class ByPriority(Buffer):
    """The least first component first."""

    def __init__(self, kind: str, name: str, capacity: int) -> None:
        super().__init__(kind, name, capacity)
        self._elements: list[tuple[int, int, Element]] = []
        self._number = itertools.count()

    def _add(self, element: Element) -> None:
        heapq.heappush(self._elements, (int(element[0]), next(self._number), element))

    def _pop(self) -> Element:
        return heapq.heappop(self._elements)[2]

    def _put_back(self, elements: Sequence[Element]) -> None:
        for element in elements:
            self._add(element)
