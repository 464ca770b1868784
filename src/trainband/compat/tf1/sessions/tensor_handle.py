"""Tensors that stay in a session between runs, and the handles by which later runs find them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, as_dtype, string
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.operations.array import placeholder

_numbers = itertools.count()
_VALUES: dict[bytes, Any] = {}
"""What is kept, by the text of its handle."""


class TensorHandle:
    """Stands for a tensor of an earlier run; it may be fed in place of its value."""

    def __init__(self, value: Any, dtype: DType) -> None:
        self.handle = f"{dtype.name};{next(_numbers)}".encode()
        """The text that `get_session_tensor` is fed."""
        self._dtype = dtype
        _VALUES[self.handle] = value

    def eval(self) -> Any:
        """The value."""
        return _value(self.handle)

    def delete(self) -> None:
        """Forgets the value."""
        _VALUES.pop(self.handle, None)

    def get_raw_handle(self) -> bytes:
        """The text, when the caller is to delete the value."""
        return self.handle

    def to_numpy_array(self) -> Any:
        """The value, as an array."""
        return np.asarray(_value(self.handle))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(_value(self.handle), dtype, copy=copy)

    def __str__(self) -> str:
        return self.handle.decode()


def _value(handle: bytes) -> Any:
    if handle not in _VALUES:
        raise InvalidArgumentError(
            None, None, f"The tensor with handle '{handle.decode()}' is not in the session store."
        )
    return _VALUES[handle]


def get_session_handle(data: Any, name: str | None = None) -> Tensor:
    """Keep a tensor: a run that fetches this gives its handle."""
    tensor = convert(data)

    def compute(*_: Any) -> Any:
        raise RuntimeError("The handle of a tensor can be fetched, but operations cannot use it.")

    return record(
        "GetSessionHandleV2",
        compute,
        [tensor],
        name=name or "GetSessionHandle",
        dtypes=[string],
        shapes=[[]],
        attributes={"host": lambda value: TensorHandle(value, tensor.dtype)},
    ).outputs[0]


def get_session_tensor(handle: Any, dtype: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
    """(where a handle is fed, the tensor that it stands for)."""
    del handle
    fed = placeholder(string, [], name="Placeholder")
    found = record_source(
        "GetSessionTensor",
        lambda _, text: [_value(_text(text))],
        [fed],
        dtypes=[as_dtype(dtype)],
        shapes=[None],
        name=name or "GetSessionTensor",
    )
    return fed, found.outputs[0]


def delete_session_tensor(handle: Any, name: str | None = None) -> tuple[Tensor, Operation]:
    """(where a handle is fed, the operation that forgets what it stands for)."""
    del handle
    fed = placeholder(string, [], name="Placeholder")

    def forget(_: Any, text: Any) -> list[Any]:
        _value(_text(text))
        del _VALUES[_text(text)]
        return []

    return fed, record_source("DeleteSessionTensor", forget, [fed], name=name or "DeleteSessionTensor")


def _text(value: Any) -> bytes:
    found = np.asarray(value).item()
    return found if isinstance(found, bytes) else str(found).encode()
