"""Mapping: a function applied to each element, in order."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from trainband.compat.tf1.datasets.elements import Element, Elements
from trainband.compat.tf1.datasets.function import Function
from trainband.compat.tf1.datasets.program import MOST_BYTES, SIZES, Computing
from trainband.compat.tf1.datasets.run import Run
from trainband.compat.tf1.graphs.errors import OpError

PATIENCE_S = 0.005
"""How long elements are gathered, so that a slow source's elements are not held back."""


class Mapping:
    """Iterates over the results. One that raises an error may go on with the next element.

    Elements are taken from the source some at a time where they can be computed together.
    """

    def __init__(self, function: Function, run: Run, elements: Elements) -> None:
        self._computing: Computing = function.program.state(run)
        self._elements = elements
        self._ready: deque[Element | OpError] = deque()
        self._put_back: deque[Element] = deque()
        self._failure: BaseException | None = None

    def __iter__(self) -> Elements:
        return self

    def __next__(self) -> Element:
        if self._ready:
            return self._next_ready()
        first = self._pull()
        if not self._computing.is_together(first):
            return self._computing.one(first)
        chunk = self._chunk(first)
        try:
            self._ready.extend(self._computing.many(chunk))
        except (OpError, ValueError, TypeError):  # a shape depends on a value
            self._computing.program.is_pure = False
            self._put_back.extendleft(reversed(chunk))
            return self._computing.one(self._pull())
        return self._next_ready()

    def _next_ready(self) -> Element:
        found = self._ready.popleft()
        if isinstance(found, OpError):
            raise found
        return found

    def _pull(self) -> Element:
        if self._put_back:
            return self._put_back.popleft()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return next(self._elements)

    def _chunk(self, first: Element) -> list[Element]:
        shapes = [leaf.shape for leaf in first]
        most = min(SIZES[-1], 1 + MOST_BYTES // (1 + sum(leaf.nbytes for leaf in first)))
        chunk = [first]
        deadline = time.monotonic() + PATIENCE_S
        try:
            while len(chunk) < most and time.monotonic() < deadline:
                element = self._pull()
                if [leaf.shape for leaf in element] != shapes:
                    self._put_back.appendleft(element)
                    break
                chunk.append(element)
        except BaseException as exc:
            self._failure = exc
        return chunk


class ThreadedMapping:
    """The same by several threads, for functions that are computed in Python."""

    def __init__(self, function: Function, run: Run, elements: Elements, threads: int) -> None:
        self._computing: Computing = function.program.state(run)
        self._elements = elements
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dataset-map")
        self._pending: deque[Future[Element]] = deque()
        self._failure: BaseException | None = None
        run.closes(self)

    def __iter__(self) -> Elements:
        return self

    def __next__(self) -> Element:
        while self._failure is None and len(self._pending) < self._threads:
            try:
                self._pending.append(self._pool.submit(self._computing.one, next(self._elements)))
            except BaseException as exc:
                self._failure = exc
        if self._pending:
            return self._pending.popleft().result()
        failure, self._failure = self._failure, None
        if failure is None:
            raise StopIteration
        raise failure

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
