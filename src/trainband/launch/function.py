"""A Python function as the program of the tasks, for notebooks, whose code is not in a file."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable

from trainband.errors import ClusterError, YourError


def pickled(function: Callable[[], object]) -> bytes:
    """Returns a function, and what it uses of its module or notebook, in the form that `function_program` reads.

    Raises:
      ClusterError: it uses something that cannot be sent to another process.
      YourError: cloudpickle is not installed.
    """
    try:
        import cloudpickle  # optional dependency
    except ModuleNotFoundError as exc:
        raise YourError(
            "a function is sent to its tasks by cloudpickle, which is not installed: "
            "pip install 'trainband[notebook]', or give a script."
        ) from exc
    try:
        code: bytes = cloudpickle.dumps(function)
    except Exception as exc:
        raise ClusterError(
            f"{function!r} cannot be sent to the tasks: {exc}. Create that object inside the function."
        ) from exc
    return pickle.dumps(sys.path) + code
