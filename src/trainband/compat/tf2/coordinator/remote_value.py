"""`RemoteValue`: what a closure returns, once it has run; and `PerWorkerValues`: one thing for each worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.errors import CancelledError
from trainband.compat.tf2.eager.structure import map_structure
from trainband.compat.tf2.eager.tensor import Tensor


class RemoteValue:
    """The future result of a closure.

    Args:
      looked: called when somebody has seen that it is there.
    """

    def __init__(self, looked: Callable[[], None] = lambda: None) -> None:
        self._looked = looked
        self._there = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def settle(self, value: Any) -> None:
        """The closure has returned this."""
        self._value = value
        self._there.set()

    def fail(self, error: BaseException) -> None:
        """The closure has failed."""
        self._error = error
        self._there.set()

    def cancel(self) -> None:
        """The closure will not run."""
        self.fail(
            CancelledError(None, None, "The corresponding function is cancelled. Please reschedule the function.")
        )

    def get(self) -> Any:
        """Waits for the result: tensors.

        Raises:
          CancelledError: the closure was cancelled, because another one had failed.
          Exception: what the closure has raised.
        """
        self._there.wait()
        self._looked()
        if self._error is not None:
            raise self._error
        return self._value

    def fetch(self) -> Any:
        """Waits for the result: arrays of NumPy."""
        return map_structure(lambda one: one.numpy() if isinstance(one, Tensor) else one, self.get())

    def __repr__(self) -> str:
        return f"<RemoteValue {'settled' if self._there.is_set() else 'pending'}>"


class PerWorkerValues:
    """One value for each worker, such as its dataset.

    Args:
      values: by the number of the worker.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(values)

    def of(self, worker: int) -> Any:
        """The value of a worker."""
        return self._values[worker]

    def __len__(self) -> int:
        return len(self._values)


def fetched(structure: Any) -> Any:
    """A structure with the results of closures in place of `RemoteValue`s."""

    def one(value: Any) -> Any:
        if isinstance(value, RemoteValue):
            return value.fetch()
        if isinstance(value, PerWorkerValues):
            return tuple(fetched(value.of(worker)) for worker in range(len(value)))
        return np.asarray(value) if isinstance(value, Tensor) else value

    return map_structure(one, structure)
