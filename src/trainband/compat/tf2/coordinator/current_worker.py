"""For which worker something is made in this thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Here(threading.local):
    worker: int | None = None


_here = _Here()


@contextmanager
def on_worker(worker: int) -> Iterator[None]:
    """What is made inside is for this worker."""
    before, _here.worker = _here.worker, worker
    try:
        yield
    finally:
        _here.worker = before


def experimental_get_current_worker_index() -> int:
    """The number of the worker for which a dataset or resource is made.

    Raises:
      RuntimeError: none is.
    """
    if _here.worker is None:
        raise RuntimeError(
            "Cannot retrieve the worker index. It is known in a function that makes a dataset or a resource for each "
            "worker."
        )
    return _here.worker
