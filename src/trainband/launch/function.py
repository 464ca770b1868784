"""A Python function as the program of the tasks, for notebooks, whose code is in no file."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable

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
            "a function is sent to its tasks by cloudpickle, which is not installed: "
            "pip install 'trainband[notebook]', or give a script."
        ) from exc
    try:
        code: bytes = cloudpickle.dumps(function)
    except Exception as exc:
        raise ClusterError(
            f"{function!r} cannot be sent to the tasks: {exc}. Make what it names inside the function."
        ) from exc
    return pickle.dumps(sys.path) + code
