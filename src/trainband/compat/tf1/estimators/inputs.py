"""`tf.estimator.inputs`: input functions that give arrays in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import as_dtype, string
from trainband.compat.tf1.graphs.errors import OutOfRangeError
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.hosted import record_source

InputFn = Callable[[], Any]
TASK = "trainband/task"
"""The collection of a graph that has the number of the task among those that train: each has an order of its own."""
_ONLY = None
"""The name of an array that was not given in a dictionary."""


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,  # noqa: ARG001 - there is no queue: a batch is cut when it is needed
    num_threads: int = 1,  # noqa: ARG001
) -> InputFn:
    """Return an input function that gives the rows of arrays in batches.

    Args:
      x: the features: an array, or a dictionary of arrays.
      y: the labels, likewise; if left out, the function gives features only.
      num_epochs: how often all rows are given; `None`: without end. Only the last batch may be smaller.
      shuffle: whether the rows come in random order.

    Raises:
      ValueError: `shuffle` is not given, there are no arrays, or they have different numbers of rows.
    """
    if not isinstance(shuffle, bool):
        raise ValueError(f"shuffle must be provided and explicitly set as boolean, got {shuffle}.")
    features, labels = _named(x, "x"), {} if y is None else _named(y, "y")
    columns = [*features.values(), *labels.values()]
    if len({len(column) for column in columns}) != 1:
        sides = [*(("x", *one) for one in features.items()), *(("y", *one) for one in labels.items())]
        shown = ", ".join(f"{name or side} has {len(column)}" for side, name, column in sides)
        raise ValueError(f"Length of tensors in x and y is mismatched: {shown} rows.")

    def input_fn() -> Any:
        graph = get_default_graph()
        seed = None if graph.seed is None else [graph.seed, *graph.get_collection(TASK)]
        rows = _Rows(len(columns[0]), batch_size, num_epochs, shuffle, seed)
        outputs = iter(_recorded(columns, rows))
        found = {name: next(outputs) for name in features}
        targets = {name: next(outputs) for name in labels}
        return _given(found) if y is None else (_given(found), _given(targets))

    return input_fn


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> InputFn:
    """Like `numpy_input_fn`, for the columns of a DataFrame; the labels are a Series or a DataFrame.

    Raises:
      ValueError: as `numpy_input_fn`; the labels have another index, or the target column is a feature, too.
    """
    features = {name: x[name].to_numpy() for name in x.columns}
    if y is not None and not np.array_equal(x.index, y.index):
        raise ValueError(f"Index for x and y are mismatched.\nIndex for x: {x.index}\nIndex for y: {y.index}\n")
    if y is not None and target_column in features:
        raise ValueError(
            f'Cannot use name "{target_column}" for target column: DataFrame already has a column with that name'
        )
    labels = y
    if y is not None:
        labels = {name: y[name].to_numpy() for name in y.columns} if hasattr(y, "columns") else y.to_numpy()
    return numpy_input_fn(features, labels, batch_size, num_epochs, shuffle, queue_capacity, num_threads)


def _named(arrays: Any, side: str) -> dict[Any, np.ndarray[Any, Any]]:
    if isinstance(arrays, Mapping):
        if not arrays:
            raise ValueError(f"{side} cannot be an empty dict.")
        return {name: np.asarray(arrays[name]) for name in sorted(arrays)}
    if not isinstance(arrays, np.ndarray):
        raise TypeError(f"{side} must be an array or a dictionary of arrays; got {type(arrays).__name__}")
    return {_ONLY: arrays}


def _given(found: dict[Any, Any]) -> Any:
    return found.get(_ONLY, found)


class _Rows:
    """Which rows the batches have. Without an end, every batch is full."""

    def __init__(self, count: int, batch_size: int, epochs: int | None, shuffle: bool, seed: Any) -> None:
        self.batch_size = batch_size
        self.is_endless = epochs is None
        self._count, self._epochs, self._shuffle, self._seed = count, epochs, shuffle, seed

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        random = np.random.default_rng(self._seed)
        done, left = 0, np.zeros(0, np.int64)
        while True:
            while len(left) < self.batch_size and (self._epochs is None or done < self._epochs) and self._count:
                order = random.permutation(self._count) if self._shuffle else np.arange(self._count)
                left, done = np.concatenate([left, order]), done + 1
            if not len(left):
                return
            yield left[: self.batch_size]
            left = left[self.batch_size :]


def _recorded(columns: Sequence[np.ndarray[Any, Any]], rows: _Rows) -> Sequence[Any]:
    kept = [column.astype(object) if column.dtype.kind in "SUO" else column for column in columns]
    key = object()

    def take(resources: dict[Any, Any]) -> Sequence[Any]:
        if key not in resources:
            resources[key] = iter(rows)
        chosen = next(resources[key], None)
        if chosen is None:
            raise OutOfRangeError(None, None, "numpy_input_fn: all rows have been used")
        return [_bytes(column[chosen]) if column.dtype == object else column[chosen] for column in kept]

    size = rows.batch_size if rows.is_endless else None
    op = record_source(
        "NumpyInput",
        take,
        dtypes=[string if column.dtype == object else as_dtype(column.dtype) for column in kept],
        shapes=[[size, *column.shape[1:]] for column in kept],
        name="fifo_queue_DequeueUpTo" if size is None else "fifo_queue_DequeueMany",
    )
    return op.outputs


def _bytes(texts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    flat = [text if isinstance(text, bytes) else str(text).encode() for text in texts.ravel()]
    return np.array(flat, object).reshape(texts.shape)
