"""What an operation was recorded with, as JSON: a node of a GraphDef carries it.

For operations of the table, that is everything but tensors; for branches and loops, tensors and regions by their names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.ops.shapes import Dimension, TensorShape

SETTINGS = "_trainband"
"""The attribute of a node that holds it."""
REGION = "_region"
"""The attribute of a node that says in which region it is: the operation that runs that, `:`, and its number."""


def packed(settings: Any) -> bytes:
    """Return settings as JSON.

    Raises:
      TypeError: one is of a kind that cannot be written.
    """
    return json.dumps(_written(settings)).encode()


Named = Callable[[str, str], Any]
"""Returns what has a name: a `tensor`, or a `region`."""


def unpacked(text: bytes, named: Named | None = None) -> Any:
    """Return what `packed` has written."""
    return _read(json.loads(text), named)


def renamed(text: bytes, rename: Callable[[str], str]) -> bytes:
    """Return settings with other names of tensors and regions."""
    return json.dumps(_renamed(json.loads(text), rename)).encode()


def names_in(text: bytes) -> set[str]:
    """The names of the operations whose tensors and regions settings name."""
    found: set[str] = set()

    def note(name: str) -> str:
        found.add(name.rpartition(":")[0])
        return name

    renamed(text, note)
    return found


def _renamed(value: Any, rename: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_renamed(one, rename) for one in value]
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return {kind: rename(content) if kind in ("tensor", "region") else _renamed(content, rename)}
    return value


def _written(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_written(one) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [_written(one) for one in value]}
    if isinstance(value, dict):
        return {"dict": [[_written(key), _written(one)] for key, one in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, slice):
        return {"slice": [_written(value.start), _written(value.stop), _written(value.step)]}
    if value is Ellipsis:
        return {"ellipsis": None}
    if isinstance(value, Dimension):
        return _written(value.value)
    if isinstance(value, TensorShape):
        return {"shape": None if value.sizes is None else list(value.sizes)}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"dtype": as_dtype(value).name}
    if hasattr(value, "value_index"):
        return {"tensor": value.name}
    if hasattr(value, "label"):
        return {"region": value.label}
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        array = np.asarray(value)
        return {"array": [as_dtype(array.dtype).name, list(array.shape), array.tobytes().hex()]}
    raise TypeError(f"{type(value).__name__} cannot be written into a GraphDef.")


def _array(parts: list[Any]) -> np.ndarray[Any, Any]:
    dtype, shape, digits = parts
    return np.frombuffer(bytes.fromhex(digits), as_dtype(dtype).numpy).reshape(shape).copy()


_READERS: dict[str, Callable[[Any], Any]] = {
    "bytes": bytes.fromhex,
    "ellipsis": lambda _: Ellipsis,
    "shape": TensorShape,
    "dtype": as_dtype,
    "array": _array,
}


def _read(value: Any, named: Named | None) -> Any:
    if isinstance(value, list):
        return [_read(one, named) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in ("tensor", "region") and named is not None:
        return named(kind, content)
    if kind in ("tuple", "slice"):
        parts = _read(content, named)
        return tuple(parts) if kind == "tuple" else slice(*parts)
    return {_read(key, named): _read(one, named) for key, one in content} if kind == "dict" else _READERS[kind](content)
