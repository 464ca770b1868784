"""A Python function as the program of the tasks, for notebooks, whose code is in no file."""

from __future__ import annotations

import contextlib
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trainband.errors import ClusterError, YourError


def pickled(function: Callable[[], object]) -> bytes:
    """A function as `function_program` reads it, with what it uses of the module or notebook that it is defined in.

    Raises:
      ClusterError: it uses something that cannot be sent to another process.
      YourError: cloudpickle is not installed.
    """
    try:
        import cloudpickle  # of an extra
    except ModuleNotFoundError as exc:
        raise YourError(
            "LocalCluster sends a function to its tasks by cloudpickle, which is not installed: "
            "pip install 'trainband[notebook]', or give a script."
        ) from exc
    try:
        code: bytes = cloudpickle.dumps(function)
    except Exception as exc:
        raise ClusterError(
            f"LocalCluster: {function!r} cannot be sent to the tasks: {exc}. Make what it names inside the function."
        ) from exc
    return pickle.dumps(sys.path) + code


@contextlib.contextmanager
def program_of(function: bytes) -> Iterator[list[str]]:
    """A context in which the command that it gives calls a pickled function."""
    with tempfile.TemporaryDirectory(prefix="trainband-function-") as directory:
        path = Path(directory, "function.pickle")
        path.write_bytes(function)
        yield ["-m", "trainband.launch.function_program", str(path)]
