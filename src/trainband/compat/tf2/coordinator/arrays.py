"""Arrays as the bytes of a frame, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.compat.tf2.coordinator.records import Aval
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.errors import ProtocolError
from trainband.wire.frame import Bytes


def aval_of(value: Any) -> Aval:
    """The shape and dtype of an array."""
    return Aval(tuple(value.shape), np.dtype(value.dtype).name)


def dtype_of(aval: Aval, sender: str) -> np.dtype[Any]:
    """The dtype that was sent, which may be one that only JAX knows, such as bfloat16."""
    try:
        found: np.dtype[Any] = jnp.dtype(aval.dtype)
    except TypeError as exc:
        raise ProtocolError(f"{sender} sent an array of {aval.dtype!r}, which is not a dtype.") from exc
    if found.hasobject:
        raise ProtocolError(f"{sender} sent an array of objects.")
    return found


def is_leaf(value: Any) -> bool:
    """Whether a structure ends here: a tensor, or what can be one."""
    return isinstance(value, Tensor) or hasattr(value, "__trainband_tensor__")


def is_array(value: Any) -> bool:
    """Whether a leaf is an array, and not just a part of a structure."""
    return is_leaf(value) or isinstance(value, jax.Array | jax.core.Tracer | np.ndarray)


def sendable(value: Any) -> NDArray[Any]:
    """An array as it can be sent: NumPy's, in one piece."""
    found = np.asarray(value)
    return found if found.flags.c_contiguous else np.ascontiguousarray(found)


class Reader:
    """Makes arrays of the bodies of frames whose arrays are of these shapes and dtypes."""

    def __init__(self, avals: Sequence[Aval], sender: str) -> None:
        self._sender = sender
        self._kinds = [(dtype_of(one, sender), one.shape) for one in avals]
        self._sizes = [int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for dtype, shape in self._kinds]

    def __call__(self, body: Sequence[Bytes]) -> list[NDArray[Any]]:
        """The arrays, which are the memory of the body.

        Raises:
          ProtocolError: the body has others.
        """
        if [one.size for one in body] != self._sizes:
            raise ProtocolError(f"{self._sender} sent {len(body)} arrays of other sizes than were agreed on.")
        return [one.view(dtype).reshape(shape) for one, (dtype, shape) in zip(body, self._kinds, strict=True)]
