"""DType: TensorFlow's names for NumPy's dtypes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

_finfo: Any = ml_dtypes.finfo  # which has no types


class DType:
    """The type of a tensor's elements. Two of one name are one object."""

    def __init__(self, name: str, kind: Any) -> None:
        self.name = name
        """As TensorFlow writes it."""
        self.numpy = np.dtype(kind)
        """NumPy's own."""

    @property
    def as_numpy_dtype(self) -> Any:
        """NumPy's scalar class."""
        return self.numpy.type

    @property
    def base_dtype(self) -> DType:
        """Itself: references have no dtype of their own here."""
        return self

    @property
    def is_floating(self) -> bool:
        """Whether it is a floating-point number."""
        return bool(jnp.issubdtype(self.numpy, jnp.floating))

    @property
    def is_integer(self) -> bool:
        """Whether it is a whole number."""
        return bool(np.issubdtype(self.numpy, np.integer))

    @property
    def is_bool(self) -> bool:
        """Whether it is a truth value."""
        return self.name == "bool"

    @property
    def is_complex(self) -> bool:
        """Whether it is a complex number."""
        return bool(np.issubdtype(self.numpy, np.complexfloating))

    @property
    def is_differentiable(self) -> bool:
        """Whether derivatives are taken by it: it is a floating-point or a complex number."""
        return self.is_floating or self.is_complex

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.numpy.itemsize)

    @property
    def min(self) -> Any:
        """The least value."""
        return self._limits().min

    @property
    def max(self) -> Any:
        """The largest value."""
        return self._limits().max

    def _limits(self) -> Any:
        kind = self.numpy if self.numpy.names is None else self.numpy[0]
        if self.is_bool:
            return _OfBool
        try:
            return _finfo(kind) if self.is_floating else np.iinfo(kind)
        except ValueError as exc:
            raise TypeError(f"{self.name} has no minimum and no maximum.") from exc

    @property
    def is_unsigned(self) -> bool:
        """Whether it is a whole number without a sign."""
        return bool(np.issubdtype(self.numpy, np.unsignedinteger))

    @property
    def is_quantized(self) -> bool:
        """Whether it is whole numbers that stand for others. No operation takes them."""
        return self.name.startswith(("qint", "quint"))

    @property
    def is_numpy_compatible(self) -> bool:
        """True: all have a dtype of NumPy's."""
        return True

    @property
    def real_dtype(self) -> DType:
        """The dtype of a complex number's parts; else itself."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    @property
    def limits(self) -> tuple[Any, Any]:
        """The least and the largest value."""
        return self.min, self.max

    @property
    def as_datatype_enum(self) -> int:
        """Its number in `TensorProto`."""
        return ENUM[self.name]

    def is_compatible_with(self, other: Any) -> bool:
        """Whether it is the same."""
        return as_dtype(other) is self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        try:
            return as_dtype(other) is self
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"tf.{self.name}"

    def __str__(self) -> str:
        return f"<dtype: '{self.name}'>"


class _OfBool:
    min, max = False, True


float16 = DType("float16", np.float16)
bfloat16 = DType("bfloat16", jnp.bfloat16)
float32 = DType("float32", np.float32)
float64 = DType("float64", np.float64)
int8 = DType("int8", np.int8)
int16 = DType("int16", np.int16)
int32 = DType("int32", np.int32)
int64 = DType("int64", np.int64)
uint8 = DType("uint8", np.uint8)
uint16 = DType("uint16", np.uint16)
uint32 = DType("uint32", np.uint32)
uint64 = DType("uint64", np.uint64)
bool_ = DType("bool", np.bool_)
complex64 = DType("complex64", np.complex64)
complex128 = DType("complex128", np.complex128)
string = DType("string", np.object_)
qint8 = DType("qint8", [("qint8", np.int8)])
quint8 = DType("quint8", [("quint8", np.uint8)])
qint16 = DType("qint16", [("qint16", np.int16)])
quint16 = DType("quint16", [("quint16", np.uint16)])
qint32 = DType("qint32", [("qint32", np.int32)])

ALL = (
    *(float16, bfloat16, float32, float64, int8, int16, int32, int64),
    *(uint8, uint16, uint32, uint64, bool_, complex64, complex128, string),
    *(qint8, quint8, qint16, quint16, qint32),
)
ENUM = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7, "complex64": 8, "int64": 9,
    "bool": 10, "qint8": 11, "quint8": 12, "qint32": 13, "bfloat16": 14, "qint16": 15, "quint16": 16, "uint16": 17,
    "complex128": 18, "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip
"""The numbers of the dtypes in TensorFlow's messages, by name."""
_BY_ENUM = {ENUM[one.name]: one for one in ALL}
_BY_NUMPY = {one.numpy: one for one in ALL}
_BY_NAME = {one.name: one for one in ALL} | {"float": float32, "double": float64, "int": int32, "half": float16}


def as_dtype(value: Any) -> DType:
    """The DType for a name, one of NumPy's dtypes or Python's types.

    Raises:
      TypeError: there is none.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        name = value.removesuffix("_ref")
        if name in _BY_NAME:
            return _BY_NAME[name]
    if type(value) is int and value in _BY_ENUM:
        return _BY_ENUM[value]
    if value is float:
        return float32
    if value is int:
        return int32
    if value is str or value is bytes:
        return string
    try:
        kind = np.dtype(value)
    except TypeError as exc:
        raise TypeError(f"Cannot convert value {value!r} to a TensorFlow DType.") from exc
    if kind.kind in "US":
        return string
    if kind not in _BY_NUMPY:
        raise TypeError(f"Cannot convert value {value!r} to a TensorFlow DType.")
    return _BY_NUMPY[kind]


def array_of(value: Any, dtype: DType | None = None) -> np.ndarray[Any, Any]:
    """A Python value as an array, of the dtype that TensorFlow would give it: float32 and int32 for plain numbers.

    Raises:
      TypeError: it is not of the dtype that is asked for.
    """
    if dtype is not None and dtype != string:
        array = np.asarray(value)
        given = isinstance(value, np.ndarray | np.generic)  # TensorFlow casts arrays, but not Python's numbers
        lossy = array.dtype.kind in "fc" and (dtype.is_integer or dtype.is_bool) and not given
        if array.dtype.kind in "OUS" or (lossy and array.size):
            raise TypeError(f"Expected {dtype.name}, but got {value!r} of type '{type(value).__name__}'.")
        if array.dtype.kind == "b" and not dtype.is_bool and not given:
            raise TypeError(f"Expected {dtype.name}, but got {value!r} of type 'bool'.")
        return array.astype(dtype.numpy)
    if dtype == string:
        return _text(value)
    array = np.asarray(value)
    if array.dtype.kind in "US":
        return _text(value)
    if not isinstance(value, np.ndarray | np.generic):
        if hasattr(value, "__array__") or _has_numpy(value):
            return array
        if array.dtype == np.float64:
            return array.astype(np.float32)
        if array.dtype == np.int64 and (array.size == 0 or _fits_int32(array)):
            return array.astype(np.int32)
    return array


def _text(value: Any) -> np.ndarray[Any, Any]:
    """Text as an array of bytes, in UTF-8, as TensorFlow keeps it."""
    array = np.asarray(value, dtype=object)
    found = np.empty(array.shape, object)
    for place, one in np.ndenumerate(array):
        found[place] = one.encode() if isinstance(one, str) else one
    return found


def _has_numpy(value: Any) -> bool:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, np.ndarray | np.generic) and not isinstance(value, float | int)


def _fits_int32(array: np.ndarray[Any, Any]) -> bool:
    limits = np.iinfo(np.int32)
    return bool(array.min() >= limits.min and array.max() <= limits.max)
