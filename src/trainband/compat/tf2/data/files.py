"""Datasets of what is in files."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, array_of, as_dtype, string
from trainband.compat.tf1.datasets.reading import field_of, fixed_records, lines
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.input.record_files import records
from trainband.compat.tf2.data.blocks import Block, Blocks, Single, elements_of
from trainband.compat.tf2.data.dataset import Dataset
from trainband.compat.tf2.data.elements import Elements
from trainband.compat.tf2.data.passes import Pass, Recipe
from trainband.compat.tf2.data.values import array_from, number
from trainband.compat.tf2.eager.function import TensorSpec
from trainband.compat.tf2.eager.shapes import TensorShape

Read = Callable[[str, str], Iterator[bytes]]
"""Reads a file, with a compression."""
AT_ONCE = 64
"""How many records are read at once."""


def TextLineDataset(  # noqa: N802 - TensorFlow's name
    filenames: Any,
    compression_type: Any = None,
    buffer_size: Any = None,
    num_parallel_reads: Any = None,
    name: str | None = None,
) -> Dataset:
    """The lines of text files, without their ends."""
    del buffer_size, num_parallel_reads, name
    return _of_files(filenames, lines, compression_type)


def FixedLengthRecordDataset(  # noqa: N802
    filenames: Any,
    record_bytes: Any,
    header_bytes: Any = None,
    footer_bytes: Any = None,
    buffer_size: Any = None,
    compression_type: Any = None,
    num_parallel_reads: Any = None,
    name: str | None = None,
) -> Dataset:
    """Records of `record_bytes` bytes each, after a header and before a footer."""
    del buffer_size, num_parallel_reads, name
    length, header, footer = (
        number(0 if one is None else one, "bytes") for one in (record_bytes, header_bytes, footer_bytes)
    )

    def read(path: str, compression: str) -> Iterator[bytes]:
        return fixed_records(path, compression, length, header, footer)

    return _of_files(filenames, read, compression_type)


def TFRecordDataset(  # noqa: N802
    filenames: Any,
    compression_type: Any = None,
    buffer_size: Any = None,
    num_parallel_reads: Any = None,
    name: str | None = None,
) -> Dataset:
    """The records of TFRecord files."""
    del buffer_size, num_parallel_reads, name

    def read(path: str, compression: str) -> Iterator[bytes]:
        return (record for _, record in records(path, compression))

    return _of_files(filenames, read, compression_type)


def _of_files(filenames: Any, read: Read, compression_type: Any) -> Dataset:
    """The texts that a function reads from files, one file after the other; the names may be a dataset."""
    compression = b"" if compression_type is None else array_of(array_from(compression_type), string).item()
    names = filenames if isinstance(filenames, Elements) else _names(filenames)
    found: Dataset = names.then(_read, read, compression.decode())
    return found


def _names(filenames: Any) -> Dataset:
    listed = array_of(array_from(filenames), string)
    if listed.dtype != object or not all(isinstance(one, bytes) for one in listed.flat):
        raise TypeError(f"The `filenames` argument must contain `tf.string` elements, got {filenames!r}.")
    return Dataset.from_tensor_slices(listed.reshape(-1))


def _read(names: Recipe, read: Read, compression: str) -> Recipe:
    def start(run: Pass) -> Blocks:
        for _, (name,) in elements_of(names.start(run)):
            records = read(name.item().decode(), compression)
            while found := list(itertools.islice(records, AT_ONCE)):
                column = np.empty(len(found), object)
                column[:] = found
                yield Block(None, (column,))

    return Recipe(kind="files", start=start, spec=lambda: TensorSpec(TensorShape([]), string))


def CsvDataset(  # noqa: N802
    filenames: Any,
    record_defaults: Sequence[Any],
    compression_type: Any = None,
    buffer_size: Any = None,
    header: bool = False,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
    exclude_cols: Sequence[int] | None = None,
) -> Dataset:
    """The rows of files with comma-separated values, as tuples of scalars.

    Args:
      record_defaults: of each column its dtype if it must have a value, else the value where it has none.
    """
    del buffer_size
    kinds = [_column(one) for one in record_defaults]
    quoting: Any = csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE
    form = (None,) * len(kinds)

    def chosen(row: list[str]) -> list[str]:
        if select_cols is not None:
            return [row[place] for place in select_cols]
        return [one for place, one in enumerate(row) if place not in (exclude_cols or ())]

    def rows(names: Recipe) -> Recipe:
        def start(run: Pass) -> Blocks:
            for _, (name,) in elements_of(names.start(run)):
                text = b"\n".join(lines(name.item().decode(), compression_type or ""))
                reader = csv.reader(io.StringIO(text.decode(), newline=""), delimiter=field_delim, quoting=quoting)
                if header:
                    next(reader, None)
                for row in map(chosen, reader):
                    if len(row) != len(kinds):
                        raise InvalidArgumentError(
                            None, None, f"Expect {len(kinds)} fields but have {len(row)} in record"
                        )
                    yield Single(
                        form, tuple(np.asarray(field_of(one, i, kinds[i], na_value)) for i, one in enumerate(row))
                    )

        return Recipe(kind="files", start=start, spec=lambda: tuple(TensorSpec([], kind) for kind, _ in kinds))

    names = filenames if isinstance(filenames, Elements) else _names(filenames)
    found: Dataset = names.then(rows)
    return found


def _column(default: Any) -> tuple[DType, Any]:
    if isinstance(default, DType):
        return default, None
    value = np.ravel(array_from(default))
    return as_dtype(value.dtype), value[0] if value.size else None
