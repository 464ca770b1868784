"""Lookup tables: `tf.lookup`."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import array_of, as_dtype, int64, string
from trainband.compat.tf1.graphs.errors import FailedPreconditionError, InvalidArgumentError
from trainband.compat.tf1.input.hashes import fingerprint
from trainband.compat.tf1.input.record_files import opened
from trainband.compat.tf2.data.contents import text_of
from trainband.compat.tf2.data.sparse_tensor import SparseTensor
from trainband.compat.tf2.eager.captured import NotCaptured
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.host_stage import computed
from trainband.compat.tf2.eager.tensor import Tensor


class TextFileIndex:
    """What a column of a text file is, beside a number: the whole line, or its number."""

    WHOLE_LINE, LINE_NUMBER = -2, -1


class KeyValueTensorInitializer:
    """The contents of a table from two tensors.

    Raises:
      InvalidArgumentError: they differ in length, or a key is there twice with different values.
    """

    def __init__(
        self, keys: Any, values: Any, key_dtype: Any = None, value_dtype: Any = None, name: str | None = None
    ) -> None:
        del name
        first, second = _typed(keys, key_dtype), _typed(values, value_dtype)
        self.key_dtype, self.value_dtype = as_dtype(first.dtype), as_dtype(second.dtype)
        if first.size != second.size:
            raise ValueError(f"Shapes {first.shape} and {second.shape} are incompatible")
        self.pairs = _once(list(zip(first.reshape(-1).tolist(), second.reshape(-1).tolist(), strict=True)))


def _typed(values: Any, dtype: Any) -> Any:
    if dtype is not None and not isinstance(values, Tensor):
        return array_of(values, as_dtype(dtype))
    return np.asarray(convert(values).array)


def _once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if found.setdefault(key, value) != value:
            raise FailedPreconditionError(
                None, None, f"HashTable has different value for same key. Key {key!r} has {found[key]!r} and trying to "
                f"add value {value!r}"
            )  # fmt: skip
    return found


class TextFileInitializer:
    """The contents of a table from the lines of a file.

    Args:
      key_index, value_index: the columns, or `TextFileIndex`.
      vocab_size: how many lines count; all when left out.

    Raises:
      NotFoundError: there is no such file.
      InvalidArgumentError: it has fewer lines or columns than it should.
    """

    def __init__(
        self,
        filename: Any,
        key_dtype: Any,
        key_index: int,
        value_dtype: Any,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
        value_index_offset: int = 0,
    ) -> None:
        del name
        self.key_dtype, self.value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)
        path = text_of(filename, "filename")
        with opened(path) as file:
            lines = [line.rstrip(b"\r\n") for line in file]
        if vocab_size is not None and len(lines) < vocab_size:
            raise InvalidArgumentError(
                None, None, f"Invalid vocab_size in {path}: expected {vocab_size} but got {len(lines)}"
            )
        glue = delimiter.encode()

        def column(line: bytes, number: int, index: int, dtype: Any) -> Any:
            if index == TextFileIndex.LINE_NUMBER:
                return number + value_index_offset
            text = line if index == TextFileIndex.WHOLE_LINE else _part(line.split(glue), index, path)
            return text if dtype is string else (float if dtype.is_floating else int)(text)

        self.pairs = _once(
            [
                (column(line, i, key_index, self.key_dtype), column(line, i, value_index, self.value_dtype))
                for i, line in enumerate(lines[:vocab_size])
            ]
        )


def _part(parts: list[bytes], index: int, path: str) -> bytes:
    if index >= len(parts):
        raise InvalidArgumentError(
            None, None, f"Invalid number of columns in {path}: {len(parts)}, expected {index + 1}"
        )
    return parts[index]


class _Table:
    """What all tables do: find values for keys."""

    def __init__(self, key_dtype: Any, value_dtype: Any, name: str | None) -> None:
        self.key_dtype, self.value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)
        self.name = name or "table"
        self.contents: dict[Any, Any] = {}

    def missing(self, key: Any) -> Any:
        """The value for a key that is not there."""
        raise NotImplementedError

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The values for keys, in a tensor of their shape; sparse if they are.

        Raises:
          TypeError: the keys are not of the table's dtype.
        """
        del name
        if isinstance(keys, SparseTensor):
            return SparseTensor(keys.indices, self.lookup(keys.values), keys.dense_shape)
        (found,) = computed((id(self), "lookup"), lambda array: [self._values(array)], [keys])
        return found

    def _values(self, array: Any) -> Any:
        kind = as_dtype(array.dtype)
        if kind is not self.key_dtype and not (kind.is_integer and self.key_dtype.is_integer):
            raise TypeError(f"Dtype of argument `keys` must be {self.key_dtype.name}, received: {kind.name}")
        found = np.empty(array.shape, self.value_dtype.numpy)
        flat = found.reshape(-1)
        for place, key in enumerate(array.reshape(-1).tolist()):
            flat[place] = self.contents[key] if key in self.contents else self.missing(key)
        return found

    __getitem__ = lookup

    def size(self, name: str | None = None) -> Tensor:
        """How many keys there are."""
        del name
        return Tensor(np.asarray(len(self.contents), np.int64))


def _keys(keys: Any) -> Any:
    tensor = convert(keys)
    if tensor.is_traced:
        raise NotCaptured
    return np.asarray(tensor.array)


class StaticHashTable(_Table):
    """A table whose contents are set once.

    Args:
      default_value: for keys that are not there.
    """

    def __init__(
        self, initializer: Any, default_value: Any, name: str | None = None, experimental_is_anonymous: bool = False
    ) -> None:
        del experimental_is_anonymous
        super().__init__(initializer.key_dtype, initializer.value_dtype, name)
        self.contents = dict(initializer.pairs)
        self._default = _typed(default_value, self.value_dtype).item()

    def missing(self, key: Any) -> Any:
        del key
        return self._default


class StaticVocabularyTable(_Table):
    """From words to numbers; what is not in the vocabulary gets one of the numbers after it.

    Raises:
      ValueError: there are no such numbers.
    """

    def __init__(
        self,
        initializer: Any,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        del experimental_is_anonymous
        kind = string if initializer is None else initializer.key_dtype
        super().__init__(lookup_key_dtype or kind, int64, name)
        if num_oov_buckets <= 0:
            raise ValueError("`num_oov_buckets` must be > 0; use StaticHashTable.")
        self.contents = {} if initializer is None else dict(initializer.pairs)
        self._buckets = num_oov_buckets

    def missing(self, key: Any) -> Any:
        text = key if isinstance(key, bytes) else str(key).encode()
        return fingerprint(text) % self._buckets + len(self.contents)

    def size(self, name: str | None = None) -> Tensor:
        """How many numbers there are."""
        del name
        return Tensor(np.asarray(len(self.contents) + self._buckets, np.int64))


class MutableHashTable(_Table):
    """A table whose contents change."""

    def __init__(self, key_dtype: Any, value_dtype: Any, default_value: Any, name: str | None = None, **_: Any) -> None:
        super().__init__(key_dtype, value_dtype, name)
        self._default = _typed(default_value, self.value_dtype).item()

    def missing(self, key: Any) -> Any:
        del key
        return self._default

    def insert(self, keys: Any, values: Any, name: str | None = None) -> None:
        """Sets the values of some keys."""
        del name
        found = _typed(values, None if isinstance(values, Tensor) else self.value_dtype).reshape(-1)
        self.contents.update(zip(_keys(keys).reshape(-1).tolist(), found.tolist(), strict=True))

    def remove(self, keys: Any, name: str | None = None) -> None:
        """Removes some keys."""
        del name
        for key in _keys(keys).reshape(-1).tolist():
            self.contents.pop(key, None)

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """All keys, and their values."""
        del name
        keys = array_of(list(self.contents), self.key_dtype)
        return Tensor(keys), Tensor(array_of(list(self.contents.values()), self.value_dtype))
