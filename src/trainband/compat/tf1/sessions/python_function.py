"""`py_function`: a Python function in a graph, which may use TensorFlow's operations on the values that it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.graph import Graph, Tensor
from trainband.compat.tf1.operations.printing import py_func
from trainband.compat.tf1.sessions.session import Session


class _Value(np.ndarray[Any, Any]):
    """An array that has the method by which such functions get at it."""

    def numpy(self) -> Any:
        """The array, or the value of a scalar."""
        return np.asarray(self)[()]


def py_function(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = None,  # noqa: N803
    name: str | None = None,
) -> Any:
    """Calls a Python function of arrays that have a method `numpy()`. It has no derivative here.

    Operations that the function uses are run at once, in a graph of their own.
    """
    function = func or (lambda *_: None)

    def call(*arrays: Any) -> Any:
        with Graph().as_default() as graph:
            found: Any = function(*(np.asarray(one).view(_Value) for one in arrays))
            several = isinstance(found, list | tuple)
            listed = list(found) if several else [found]
            if any(hasattr(one, "initializer") for one in listed):
                raise TypeError("py_function's function must return arrays or tensors, not variables.")
            tensors = {i: one for i, one in enumerate(listed) if isinstance(one, Tensor)}
            if tensors:
                with Session(graph=graph) as session:
                    for i, value in session.run(tensors).items():
                        listed[i] = value
        return listed if several else listed[0]

    return py_func(call, inp, Tout, name=name or "EagerPyFunc")
