"""Datasets of workers: the coordinator runs them, in a thread for each, a few elements ahead of the closures."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from trainband.compat.tf1.graphs.errors import CancelledError, OutOfRangeError
from trainband.compat.tf2.coordinator.arrays import is_leaf, sendable
from trainband.compat.tf2.coordinator.remote_value import PerWorkerValues
from trainband.runtime import SYSTEM

AHEAD = 4
"""How many elements are made before they are asked for."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a dataset: its arrays, and how they lie in it."""

    arrays: list[Any]
    structure: Any

    @classmethod
    def of(cls, value: Any) -> Element:
        """Of what an iterator gave."""
        leaves, structure = jax.tree.flatten(value, is_leaf=is_leaf)
        return cls([sendable(getattr(one, "array", one)) for one in leaves], structure)

    @property
    def key(self) -> Any:
        """Equal for elements that look alike."""
        return self.structure, tuple((one.shape, one.dtype) for one in self.arrays)


class _Line:
    """The elements of a feed that have been made and not been taken, between its thread and who takes them."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.elements: deque[Element] = deque()
        self.over: BaseException | None = None
        self.wanted = AHEAD
        self.is_closed = False

    def close(self) -> None:
        """Ends the thread, and who waits."""
        with self.condition:
            self.is_closed = True
            self.over = self.over or CancelledError(None, None, "The coordinator has ended.")
            self.condition.notify_all()

    def make(self, begin: Callable[[], Iterator[Any]]) -> None:
        """Makes elements, as long as somebody may want them."""
        try:
            for value in begin():
                element = Element.of(value)
                with self.condition:
                    self.elements.append(element)
                    self.condition.notify_all()
                    while len(self.elements) >= self.wanted and not self.is_closed:
                        self.condition.wait()
                    if self.is_closed:
                        return
            raise OutOfRangeError(None, None, "End of sequence")
        except BaseException as exc:  # it is raised where elements are asked for
            with self.condition:
                self.over = exc
                self.condition.notify_all()


class Feed:
    """The elements of one worker's dataset, made ahead by a thread that begins when the first is asked for.

    The thread ends with the dataset, with the coordinator, or when nobody has the feed any more.

    Args:
      begin: makes the iterator.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin
        self._line = _Line()
        self._has_begun = False
        weakref.finalize(self, self._line.close)

    def take(self, count: int) -> list[Element]:
        """Waits for the next elements, and takes them.

        Raises:
          OutOfRangeError: there are no more.
          Exception: what the dataset has raised.
        """
        with self._line.condition:
            self._await(count)
            found = [self._line.elements.popleft() for _ in range(count)]
            self._line.condition.notify_all()
            return found

    def peek(self, at: int) -> Element:
        """Waits for an element that is yet to be taken: the next is number 0."""
        with self._line.condition:
            self._await(at + 1)
            return self._line.elements[at]

    def give_back(self, elements: Sequence[Element]) -> None:
        """These come next: what took them was not done."""
        with self._line.condition:
            self._line.elements.extendleft(reversed(elements))
            self._line.condition.notify_all()

    def close(self) -> None:
        """Ends the thread."""
        self._line.close()

    def _await(self, count: int) -> None:
        line = self._line
        if not self._has_begun:
            self._has_begun = True
            make, begin = line.make, self._begin  # not this feed, which must be able to go
            SYSTEM.thread(lambda: make(begin), "trainband-feed").start()
        if count > line.wanted:
            line.wanted = count
            line.condition.notify_all()
        while len(line.elements) < count:
            if line.over is not None:
                raise line.over
            line.condition.wait()


class PerWorkerIterator(PerWorkerValues):
    """An iterator for each worker; pass it to a closure, which takes the elements of the worker that runs it."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        super().__init__(feeds)
        self.feeds = tuple(feeds)

    def __next__(self) -> Any:
        raise NotImplementedError(
            "The iterator of a per-worker dataset can be used in closures only: pass it to `schedule` in `args`."
        )

    get_next = __next__

    def __iter__(self) -> PerWorkerIterator:
        return self


class PerWorkerDataset(PerWorkerValues):
    """A dataset for each worker.

    Args:
      make: gives the dataset of a worker, by its number.
      began: told of each feed that an iterator begins.
    """

    def __init__(self, make: Callable[[int], Any], workers: int, began: Callable[[Feed], None]) -> None:
        super().__init__([make] * workers)
        self._make = make
        self._began = began
        self._spec: Any = None

    def of(self, worker: int) -> Any:
        """The dataset of a worker, made anew."""
        return self._make(worker)

    def __iter__(self) -> PerWorkerIterator:
        def begin(worker: int) -> Callable[[], Iterator[Any]]:
            return lambda: iter(self._make(worker))

        feeds = [Feed(begin(worker)) for worker in range(len(self))]
        for feed in feeds:
            self._began(feed)
        return PerWorkerIterator(feeds)

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of an element."""
        if self._spec is None:
            self._spec = self._make(0).element_spec
        return self._spec
