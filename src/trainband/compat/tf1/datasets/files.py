"""Datasets of what is in files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, array_of, as_dtype, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.datasets.dataset import Dataset
from trainband.compat.tf1.datasets.elements import Elements, Spec, boxed
from trainband.compat.tf1.datasets.reading import field_of, fixed_records, lines, opened
from trainband.compat.tf1.datasets.run import Input, Run
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.record import is_tensor
from trainband.compat.tf1.input.record_files import records

TEXT = Spec(string, TensorShape([]))


def TextLineDataset(  # noqa: N802
    filenames: Any, compression_type: Any = None, buffer_size: Any = None, num_parallel_reads: Any = None
) -> Dataset:
    """The lines of text files, without their ends."""
    del buffer_size, num_parallel_reads

    return _of_files(filenames, lines, compression_type)


def FixedLengthRecordDataset(  # noqa: N802
    filenames: Any,
    record_bytes: Any,
    header_bytes: Any = None,
    footer_bytes: Any = None,
    buffer_size: Any = None,
    compression_type: Any = None,
    num_parallel_reads: Any = None,
) -> Dataset:
    """Records of `record_bytes` bytes each, after a header and before a footer."""
    del buffer_size, num_parallel_reads
    sizes = [Input.make(0 if one is None else one) for one in (record_bytes, header_bytes, footer_bytes)]

    return _of_files(filenames, fixed_records, compression_type, sizes)


def TFRecordDataset(  # noqa: N802
    filenames: Any, compression_type: Any = None, buffer_size: Any = None, num_parallel_reads: Any = None
) -> Dataset:
    """The records of TFRecord files."""
    del buffer_size, num_parallel_reads

    def read(path: str, compression: str) -> Iterator[bytes]:
        return (record for _, record in records(path, compression))

    return _of_files(filenames, read, compression_type)


def _of_files(
    filenames: Any,
    read: Callable[..., Iterator[bytes]],
    compression_type: Any,
    more: Sequence[Input] = (),
) -> Dataset:
    """The texts that a function reads from files, one file after the other; the names may be a dataset."""
    compression = Input.make(compression_type or "", None if is_tensor(compression_type) else string)
    names = None if isinstance(filenames, Dataset) else Input.make(filenames, None if is_tensor(filenames) else string)

    def start(run: Run) -> Elements:
        how = bytes(compression.of(run)[()]).decode()
        settings = [int(one.of(run)) for one in more]
        listed = np.ravel(names.of(run)) if names is not None else (one for (one,) in filenames.start(run))
        for name in listed:
            for record in read(bytes(name if isinstance(name, bytes) else name[()]).decode(), how, *settings):
                yield (boxed(record),)

    parents = [filenames] if names is None else []
    inputs = [t for one in (compression, *more, *([] if names is None else [names])) for t in one.tensors]
    return Dataset(TEXT, start, parents, inputs)


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
) -> Dataset:
    """The rows of files with comma-separated values, as tuples of scalars.

    Args:
      record_defaults: of each column its dtype if it must have a value, else the value where it has none.
    """
    del buffer_size
    kinds = [_column(one) for one in record_defaults]
    quoting: Any = csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE

    def start(run: Run) -> Elements:
        for name in np.ravel(names.of(run)):
            with opened(bytes(name).decode(), compression_type or "") as file:
                rows = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""), delimiter=field_delim, quoting=quoting)
                if header:
                    next(rows, None)
                for row in rows:
                    fields = row if select_cols is None else [row[i] for i in select_cols]
                    if len(fields) != len(kinds):
                        raise InvalidArgumentError(
                            None, None, f"Expect {len(kinds)} fields but have {len(fields)} in record"
                        )
                    yield tuple([field_of(one, i, kinds[i], na_value) for i, one in enumerate(fields)])

    names = Input.make(filenames, None if is_tensor(filenames) else string)
    structure = tuple(Spec(kind, TensorShape([])) for kind, _ in kinds)
    return Dataset(structure, start, inputs=names.tensors)


def _column(default: Any) -> tuple[DType, Any]:
    if isinstance(default, DType):
        return default, None
    value = np.ravel(array_of(default))
    return as_dtype(value.dtype), value[0] if value.size else None
