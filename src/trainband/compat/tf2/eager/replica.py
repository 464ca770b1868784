"""The replica that computes in this thread, where several compute one function, each of its own inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from trainband.compat.tf2.eager.tensor import Tensor


class Replica(Protocol):
    """One of several replicas."""

    def merged(self, function: Callable[[Sequence[Tensor]], Any], tensors: Sequence[Tensor]) -> Any:
        """Adds up tensors over all replicas, and has a function of the sums run once for all of them."""
        ...


class _Here(threading.local):
    def __init__(self) -> None:
        self.replica: Replica | None = None
        self.watchers: list[Callable[[Any], None]] = []


_here = _Here()


def current() -> Replica | None:
    """The replica of this thread; `None` where there is but one, or outside of it."""
    return _here.replica


@contextmanager
def being(replica: Replica | None) -> Iterator[None]:
    """What is inside computes for this replica."""
    before, _here.replica = _here.replica, replica
    try:
        yield
    finally:
        _here.replica = before


@contextmanager
def telling_of_variables(watcher: Callable[[Any], None]) -> Iterator[None]:
    """Tells `watcher` of each variable that is made inside."""
    _here.watchers.append(watcher)
    try:
        yield
    finally:
        _here.watchers.remove(watcher)


def variable_was_made(variable: Any) -> None:
    """Tells of a new variable that has a value."""
    for watcher in _here.watchers[-1:]:
        watcher(variable)
