"""Lookup tables, from text to numbers and back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainband.compat.ops.dtypes import DType, as_dtype, int64, string
from trainband.compat.tf1.graphs.errors import FailedPreconditionError, InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.input.hashes import fingerprint, strong_hash
from trainband.compat.tf1.input.record_files import opened
from trainband.compat.tf1.operations.control_flow import no_op

_numbers = itertools.count()


class KeyValueTensorInitializer:
    """The contents of a table from two tensors."""

    def __init__(
        self, keys: Any, values: Any, key_dtype: Any = None, value_dtype: Any = None, name: str | None = None
    ) -> None:
        del name
        self.inputs = [
            convert(keys, None if key_dtype is None else as_dtype(key_dtype)),
            convert(values, None if value_dtype is None else as_dtype(value_dtype)),
        ]
        self.key_dtype, self.value_dtype = self.inputs[0].dtype, self.inputs[1].dtype
        self.inputs[0].shape.assert_is_compatible_with(self.inputs[1].shape)

    def pairs(self, keys: Any, values: Any) -> list[tuple[Any, Any]]:
        """The contents.

        Raises:
          InvalidArgumentError: there are none.
        """
        if not keys.size:
            raise InvalidArgumentError(None, None, "keys and values cannot be empty tensors.")
        return list(zip(keys.reshape(-1).tolist(), values.reshape(-1).tolist(), strict=True))


class TextFileIndex:
    """What a column of a text file is, beside a number: the whole line, or its number."""

    WHOLE_LINE, LINE_NUMBER = -2, -1


class TextFileInitializer:
    """The contents of a table from the lines of a file.

    Args:
      key_index, value_index: the columns, or `TextFileIndex`.
      vocab_size: how many lines count; all when left out.

    Raises:
      ValueError: no file, no line, or dtypes that such columns cannot have.
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
    ) -> None:
        del name
        if not isinstance(filename, Tensor) and not filename:
            raise ValueError("Filename required for TextFileInitializer")
        self.inputs = [convert(filename, string)]
        self.key_dtype, self.value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)
        self.inputs[0].shape.merge_with([])
        if vocab_size is not None and vocab_size <= 0:
            raise ValueError(f"vocab_size must be greater than 0, got {vocab_size}.")
        for dtype, index in ((self.key_dtype, key_index), (self.value_dtype, value_index)):
            wanted = {TextFileIndex.LINE_NUMBER: (int64,), TextFileIndex.WHOLE_LINE: (string, int64)}.get(index)
            if wanted is not None and dtype not in wanted:
                raise ValueError(f"Signature mismatch. A column {index} must be {wanted[0]!r}, got {dtype!r}.")
        get_default_graph().add_to_collection(GraphKeys.ASSET_FILEPATHS, self.inputs[0])
        self._columns, self._size, self._delimiter = (key_index, value_index), vocab_size, delimiter.encode()

    def pairs(self, filename: Any) -> list[tuple[Any, Any]]:
        """The contents.

        Raises:
          NotFoundError: there is no such file.
          InvalidArgumentError: it has fewer lines than it should, or a line has too few columns.
        """
        path = filename.item().decode()
        with opened(path) as file:
            lines = [line.rstrip(b"\r\n") for line in file]
        if self._size is not None:
            if len(lines) < self._size:
                raise InvalidArgumentError(
                    None, None, f"Invalid vocab_size in {path}: expected {self._size} but got {len(lines)}"
                )
            lines = lines[: self._size]
        kinds = (self.key_dtype, self.value_dtype)
        found = []
        for number, line in enumerate(lines):
            key, value = (
                self._column(line, number, column, kind, path)
                for column, kind in zip(self._columns, kinds, strict=True)
            )
            found.append((key, value))
        return found

    def _column(self, line: bytes, number: int, column: int, dtype: DType, path: str) -> Any:
        if column == TextFileIndex.LINE_NUMBER:
            return number
        words = [line] if column == TextFileIndex.WHOLE_LINE else line.split(self._delimiter)
        try:
            word = words[max(0, column)]
        except IndexError:
            raise InvalidArgumentError(
                None, None, f"Invalid number of columns in {path} line {number}: expected {column + 1} got {len(words)}"
            ) from None
        try:
            return word if dtype == string else float(word) if dtype.is_floating else int(word)
        except ValueError:
            text = word.decode(errors="replace")
            raise InvalidArgumentError(
                None, None, f"Field {text} in line {number} of {path} is not a valid {dtype.name}."
            ) from None


def TextFileStringTableInitializer(  # noqa: N802 - TensorFlow's name
    filename: Any,
    key_column_index: int = TextFileIndex.LINE_NUMBER,
    value_column_index: int = TextFileIndex.WHOLE_LINE,
    vocab_size: int | None = None,
    delimiter: str = "\t",
    name: str | None = None,
) -> TextFileInitializer:
    """From numbers of lines to lines."""
    return TextFileInitializer(
        filename, int64, key_column_index, string, value_column_index, vocab_size, delimiter, name
    )


def TextFileIdTableInitializer(  # noqa: N802
    filename: Any,
    key_column_index: int = TextFileIndex.WHOLE_LINE,
    value_column_index: int = TextFileIndex.LINE_NUMBER,
    vocab_size: int | None = None,
    delimiter: str = "\t",
    name: str | None = None,
    key_dtype: Any = string,
) -> TextFileInitializer:
    """From lines to their numbers."""
    return TextFileInitializer(
        filename, key_dtype, key_column_index, int64, value_column_index, vocab_size, delimiter, name
    )


class LookupInterface:
    """What all tables do: find values for keys, of dense and sparse tensors."""

    def __init__(self, key_dtype: Any, value_dtype: Any, name: str) -> None:
        self.key_dtype, self.value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)
        self.name = get_default_graph().unique_name(name)
        self._key = ("table", next(_numbers))
        self._default: list[Tensor] = []
        self.default_value: Any = None

    @property
    def table_ref(self) -> LookupInterface:
        """Itself."""
        return self

    resource_handle = table_ref

    def found(self, resources: Any, keys: Any, *default: Any) -> Any:
        """The values for an array of keys, in a session; a tensor that is the default comes with its value."""
        raise NotImplementedError

    def _defaulted(self, value: Any) -> None:
        """Sets the value for keys that are not there: in Python, or a tensor.

        Raises:
          TypeError: it is not of the table's dtype.
        """
        try:
            given = convert(value, self.value_dtype)
        except ValueError as exc:
            raise TypeError(str(exc)) from exc
        if given.op.type == "Const":
            self.default_value = given.op.compute()[0].tolist()
        else:
            self.default_value, self._default = given, [given]

    def count(self, resources: Any) -> int:
        """How many keys there are, in a session."""
        raise NotImplementedError

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The values for keys, in a tensor of their shape; sparse if they are.

        Raises:
          TypeError: the keys are not of the table's dtype.
        """
        if isinstance(keys, SparseTensor):
            return SparseTensor(keys.indices, self.lookup(keys.values, name), keys.dense_shape)
        given = convert(keys)
        if given.dtype != self.key_dtype and not (given.dtype.is_integer and self.key_dtype.is_integer):
            raise TypeError(f"Signature mismatch. Keys must be dtype {self.key_dtype}, got {given.dtype}.")
        return record_source(
            "LookupTableFindV2",
            lambda resources, *arrays: [self.found(resources, *arrays)],
            [given, *self._default],
            dtypes=[self.value_dtype],
            shapes=[given.shape],
            name=name or f"{self.name}_Lookup",
        ).outputs[0]

    def size(self, name: str | None = None) -> Tensor:
        """How many keys there are."""
        return record_source(
            "LookupTableSizeV2",
            lambda resources: [np.int64(self.count(resources))],
            dtypes=[int64],
            shapes=[[]],
            name=name or f"{self.name}_Size",
        ).outputs[0]


def _mapped(keys: Any, dtype: DType, value_of: Callable[[Any], Any]) -> Any:
    found = np.empty(keys.shape, dtype.numpy)
    flat = found.reshape(-1)
    for place, key in enumerate(keys.reshape(-1).tolist()):
        flat[place] = value_of(key)
    return found


class HashTable(LookupInterface):
    """A table whose contents are set once, by its initializer; `tf.tables_initializer()` runs those of all tables.

    Args:
      default_value: for keys that are not there.
    """

    def __init__(
        self, initializer: Any, default_value: Any, shared_name: str | None = None, name: str | None = None, **_: Any
    ) -> None:
        super().__init__(initializer.key_dtype, initializer.value_dtype, name or "hash_table")
        if shared_name:
            self._key = ("table", shared_name)  # type: ignore[assignment]
        self._defaulted(default_value)

        def fill(resources: Any, *arrays: Any) -> list[Any]:
            if self._key not in resources:
                table: dict[Any, Any] = {}
                for key, value in initializer.pairs(*arrays):
                    if table.setdefault(key, value) != value:
                        raise FailedPreconditionError(
                            None,
                            None,
                            "HashTable has different value for same key. "
                            f"Key {key!r} has {table[key]!r} and trying to add value {value!r}",
                        )
                resources[self._key] = table
            return []

        self.initializer: Operation = record_source(
            "InitializeTableV2", fill, initializer.inputs, name=f"{self.name}_init"
        )
        """The operation that sets the contents."""
        get_default_graph().add_to_collection(GraphKeys.TABLE_INITIALIZERS, self.initializer)

    @property
    def init(self) -> Operation:
        """What sets the contents."""
        return self.initializer

    def _contents(self, resources: Any) -> dict[Any, Any]:
        if self._key not in resources:
            raise FailedPreconditionError(
                None, None, f"Table not initialized: {self.name}. Run tf.tables_initializer()."
            )
        contents: dict[Any, Any] = resources[self._key]
        return contents

    def found(self, resources: Any, keys: Any, *default: Any) -> Any:
        """The values for an array of keys."""
        table = self._contents(resources)
        otherwise = default[0].tolist() if default else self.default_value
        return _mapped(keys, self.value_dtype, lambda key: table.get(key, otherwise))

    def count(self, resources: Any) -> int:
        """How many keys there are."""
        return len(self._contents(resources))


class HasherSpec(NamedTuple):
    """How keys are hashed: `fasthash`, or `stronghash` with a key of two numbers."""

    hasher: str
    key: Any


FastHashSpec = HasherSpec("fasthash", None)


def StrongHashSpec(key: Sequence[int]) -> HasherSpec:  # noqa: N802 - TensorFlow's name
    """Hash by a key, so that nobody who does not know it can make keys collide.

    Raises:
      ValueError, TypeError: the key is not two whole numbers.
    """
    if len(key) != 2:
        raise ValueError(f"key must have size 2, got {len(key)}.")
    if not all(isinstance(one, int | np.integer) for one in key):
        raise TypeError(f"Invalid key {key}. Must be unsigned integer values.")
    return HasherSpec("stronghash", key)


def _hasher(spec: Any) -> Callable[[bytes], int]:
    if not isinstance(spec, HasherSpec):
        raise TypeError(f"hasher_spec must be of type HasherSpec, got {spec!r}")
    if spec.hasher == "fasthash":
        return fingerprint
    if spec.hasher != "stronghash":
        raise ValueError(f"Unknown hasher {spec.hasher}")
    return lambda data: strong_hash(data, spec.key)


class IdTableWithHashBuckets(LookupInterface):
    """A table of numbers in which keys that are not there get one of some further numbers, by their hash."""

    def __init__(
        self,
        table: HashTable | None,
        num_oov_buckets: int,
        hasher_spec: Any = FastHashSpec,
        name: str | None = None,
        key_dtype: Any = None,
    ) -> None:
        own = string if table is None else table.key_dtype
        kind = own if key_dtype is None else as_dtype(key_dtype)
        if not (kind.is_integer or kind == string) or (kind.is_integer != own.is_integer and table is not None):
            raise TypeError(f"Invalid key_dtype, expected one of integer or string, got {kind!r}.")
        super().__init__(kind, int64, name or "string_to_index")
        if table is None and num_oov_buckets <= 0:
            raise ValueError("oov_buckets must be > 0 if no table is supplied.")
        if num_oov_buckets <= 0 and table is not None:
            self._default = table._default  # noqa: SLF001 - the same module's
        self._table, self._buckets, self._hash = table, num_oov_buckets, _hasher(hasher_spec)

    @property
    def initializer(self) -> Any:
        """What sets the contents."""
        if self._table is not None:
            return self._table.initializer
        with get_default_graph().name_scope(self.name):
            return no_op()

    init = initializer

    def found(self, resources: Any, keys: Any, *default: Any) -> Any:
        """The numbers for an array of keys."""
        known = self._table
        if known is None:
            return _mapped(keys, int64, lambda key: self._hash(_text(key)) % self._buckets)
        size, numbers = known.count(resources), known.found(resources, keys, *default)
        if self._buckets <= 0:
            return numbers
        others = _mapped(keys, int64, lambda key: size + self._hash(_text(key)) % self._buckets)
        return np.where(numbers == known.default_value, others, numbers)

    def count(self, resources: Any) -> int:
        """How many numbers there are."""
        return self._buckets + (0 if self._table is None else self._table.count(resources))


def _text(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()


class MutableHashTable(LookupInterface):
    """A table that a script fills."""

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        shared_name: str | None = None,
        name: str = "MutableHashTable",
        checkpoint: bool = True,  # noqa: ARG002
    ) -> None:
        super().__init__(key_dtype, value_dtype, name)
        if shared_name:
            self._key = ("table", shared_name)  # type: ignore[assignment]
        self._defaulted(default_value)
        self._lock = threading.Lock()

    def _contents(self, resources: Any) -> dict[Any, Any]:
        contents: dict[Any, Any] = resources.setdefault(self._key, {})
        return contents

    def found(self, resources: Any, keys: Any, *default: Any) -> Any:
        """The values for an array of keys."""
        table = self._contents(resources)
        otherwise = default[0].tolist() if default else self.default_value
        return _mapped(keys, self.value_dtype, lambda key: table.get(key, otherwise))

    def count(self, resources: Any) -> int:
        """How many keys there are."""
        return len(self._contents(resources))

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Operation:
        """An operation that sets values for keys."""

        def put(resources: Any, names: Any, given: Any) -> list[Any]:
            with self._lock:
                self._contents(resources).update(
                    zip(names.reshape(-1).tolist(), given.reshape(-1).tolist(), strict=True)
                )
            return []

        inputs = [convert(keys, self.key_dtype), convert(values, self.value_dtype)]
        return record_source("LookupTableInsertV2", put, inputs, name=name or f"{self.name}_Insert")

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """All keys, and their values."""

        def take(resources: Any) -> list[Any]:
            table = self._contents(resources)
            arrays = []
            for dtype, items in ((self.key_dtype, list(table)), (self.value_dtype, list(table.values()))):
                array = np.empty(len(items), dtype.numpy)
                array[:] = items
                arrays.append(array)
            return arrays

        op = record_source(
            "LookupTableExportV2", take, dtypes=[self.key_dtype, self.value_dtype], shapes=[[None]] * 2, name=name
        )
        return op.outputs[0], op.outputs[1]


def _with_buckets(contents: Any, default_value: Any, num_oov_buckets: int, hasher_spec: Any, name: str) -> Any:
    if num_oov_buckets < 0:
        raise ValueError(f"num_oov_buckets must be greater or equal than 0, got {num_oov_buckets}.")
    table = HashTable(contents, default_value, name=name)
    return IdTableWithHashBuckets(table, num_oov_buckets, hasher_spec) if num_oov_buckets else table


def index_table_from_file(
    vocabulary_file: Any = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: Any = FastHashSpec,
    key_dtype: Any = string,
    name: str | None = None,
    key_column_index: int = TextFileIndex.WHOLE_LINE,
    value_column_index: int = TextFileIndex.LINE_NUMBER,
    delimiter: str = "\t",
) -> Any:
    """From the lines of a file to their numbers; other keys get the default, or one of the buckets."""
    if not isinstance(vocabulary_file, Tensor) and not vocabulary_file:
        raise ValueError("vocabulary_file must be specified and must not be empty.")
    kind = int64 if as_dtype(key_dtype).is_integer else key_dtype
    contents = TextFileInitializer(
        vocabulary_file, kind, key_column_index, int64, value_column_index, vocab_size, delimiter
    )
    return _with_buckets(contents, default_value, num_oov_buckets, hasher_spec, name or "string_to_index")


def index_table_from_tensor(
    vocabulary_list: Any = None,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = FastHashSpec,
    dtype: Any = string,
    name: str | None = None,
    mapping: Any = None,
) -> Any:
    """From the elements of a tensor to their numbers; other keys get the default, or one of the buckets."""
    listed = vocabulary_list if mapping is None else mapping
    if listed is None:
        raise ValueError("vocabulary_list must be specified.")
    keys = convert(listed, as_dtype(dtype) if as_dtype(dtype) == string else None)
    return _with_buckets(_Numbered(keys), default_value, num_oov_buckets, hasher_spec, name or "string_to_index")


class _Numbered:
    """The contents of a table: elements and their numbers, or the other way round."""

    def __init__(self, elements: Tensor, *, by_number: bool = False) -> None:
        self.inputs, self._by_number = [elements], by_number
        kinds = (elements.dtype if not elements.dtype.is_integer else int64, int64)
        self.key_dtype, self.value_dtype = kinds[::-1] if by_number else kinds

    def pairs(self, elements: Any) -> list[tuple[Any, Any]]:
        """The contents.

        Raises:
          InvalidArgumentError: there are none.
        """
        if not elements.size:
            raise InvalidArgumentError(None, None, "keys and values cannot be empty tensors.")
        pairs = enumerate(elements.reshape(-1).tolist())
        return list(pairs) if self._by_number else [(element, number) for number, element in pairs]


def index_to_string_table_from_file(
    vocabulary_file: Any,
    vocab_size: int | None = None,
    default_value: str = "UNK",
    name: str | None = None,
    key_column_index: int = TextFileIndex.LINE_NUMBER,
    value_column_index: int = TextFileIndex.WHOLE_LINE,
    delimiter: str = "\t",
) -> HashTable:
    """From numbers to the lines of a file."""
    contents = TextFileInitializer(
        vocabulary_file, int64, key_column_index, string, value_column_index, vocab_size, delimiter
    )
    return HashTable(contents, default_value, name=name or "index_to_string")


def index_to_string_table_from_tensor(
    vocabulary_list: Any = None, default_value: str = "UNK", name: str | None = None, mapping: Any = None
) -> HashTable:
    """From numbers to the elements of a tensor."""
    elements = convert(vocabulary_list if mapping is None else mapping, string)
    return HashTable(_Numbered(elements, by_number=True), default_value, name=name or "index_to_string")


def index_to_string(tensor: Any, mapping: Any, default_value: str = "UNK", name: str | None = None) -> Any:
    """The elements of a list that have these numbers."""
    return index_to_string_table_from_tensor(mapping, default_value).lookup(convert(tensor, None), name)


def string_to_index(tensor: Any, mapping: Any, default_value: int = -1, name: str | None = None) -> Any:
    """The numbers of these elements in a list."""
    return index_table_from_tensor(mapping, default_value=default_value).lookup(tensor, name)
