"""Producers: queues of file names, numbers or rows, filled once for each epoch."""

from __future__ import annotations

import glob
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import float32, int32, string
from trainband.compat.ops.indexing import gather
from trainband.compat.ops.math import multiply
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, OutOfRangeError
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.keys import combined_seed
from trainband.compat.tf1.graphs.record import convert, name_scope
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.input.queues import FIFOQueue, QueueBase
from trainband.compat.tf1.operations import summary
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.training.queue_runner import QueueRunner, add_queue_runner

_numbers = itertools.count()


def matching_files(pattern: Any, name: str | None = None) -> Tensor:
    """The files that a pattern, or each of several, matches, in order."""

    def find(_: Any, patterns: Any) -> list[Any]:
        return [np.array([path.encode() for path in _matching(patterns)], object)]

    return record_source(
        "MatchingFiles", find, [convert(pattern, string)], dtypes=[string], shapes=[[None]], name=name
    ).outputs[0]


def _matching(patterns: Any) -> list[str]:
    found = [glob.glob(pattern.decode()) for pattern in np.ravel(patterns)]  # noqa: PTH207 - it may begin anywhere
    return sorted(path for paths in found for path in paths)


def match_filenames_once(pattern: Any, name: str | None = None) -> Tensor:
    """The files that a pattern matches when a session first asks for them."""
    key = ("filenames", next(_numbers))

    def find(resources: Any, patterns: Any) -> list[Any]:
        if key not in resources:
            resources[key] = np.array([path.encode() for path in _matching(patterns)], object)
        return [resources[key]]

    return record_source(
        "MatchingFiles",
        find,
        [convert(pattern, string)],
        dtypes=[string],
        shapes=[[None]],
        name=name or "matching_filenames",
    ).outputs[0]


def limit_epochs(tensor: Any, num_epochs: int | None = None, name: str | None = None) -> Tensor:
    """The same tensor for so many runs, and then the end of the input. Without a number, for ever.

    It makes a local variable `epochs`: run `tf.local_variables_initializer()`.

    Raises:
      ValueError: the number is not positive.
      OutOfRangeError (in a run): it was given so many times.
    """
    whole = convert(tensor)
    if num_epochs is None:
        return whole
    if num_epochs <= 0:
        raise ValueError(f"num_epochs must be > 0 not {num_epochs}.")
    key, lock = ("epochs", next(_numbers)), threading.Lock()
    with name_scope(name, "limit_epochs", [whole]) as scope:
        started = Variable(np.int64(0), name="epochs", trainable=False, collections=[GraphKeys.LOCAL_VARIABLES])

        def count(resources: Any, _: Any, value: Any) -> list[Any]:
            with lock:
                done = resources.get(key, 0)
                if done >= num_epochs:
                    raise OutOfRangeError(None, op, f"Reached limit of {num_epochs}")
                resources[key] = done + 1
            return [value]

        op = record_source(
            "LimitEpochs", count, [started.read_value(), whole], dtypes=[whole.dtype], shapes=[whole.shape], name=scope
        )
    return op.outputs[0]


def shuffled(tensor: Tensor, seed: int | None = None) -> Tensor:
    """The rows of a tensor in an order that is new in each run."""
    graph = get_default_graph()
    key, drawn = ("shuffle", next(_numbers)), combined_seed(graph.seed, seed, len(graph.operations))

    def shuffle(resources: Any, rows: Any) -> list[Any]:
        generator = resources.setdefault(key, np.random.default_rng(drawn))
        return [generator.permutation(rows)]

    return record_source("RandomShuffle", shuffle, [tensor], dtypes=[tensor.dtype], shapes=[tensor.shape]).outputs[0]


def input_producer(
    input_tensor: Any,
    element_shape: Any = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> QueueBase:
    """A queue of the rows of a tensor, filled again and again, or for so many epochs.

    Raises:
      ValueError: the shape of a row is not known.
    """
    with name_scope(name, "input_producer", [input_tensor]) as scope:
        rows = convert(input_tensor)
        sizes = rows.shape.sizes
        row = TensorShape(None if sizes is None else sizes[1:]).merge_with(TensorShape(element_shape))
        if not row.is_fully_defined():
            raise ValueError(
                "Either `input_tensor` must have a fully defined shape or `element_shape` must be specified"
            )
        if shuffle:
            rows = shuffled(rows, seed)
        rows = limit_epochs(rows, num_epochs)
        queue = FIFOQueue(
            capacity, [rows.dtype], [row], shared_name=shared_name, name=scope.rstrip("/").rpartition("/")[2]
        )
        add_queue_runner(QueueRunner(queue, [queue.enqueue_many([rows])], cancel_op=cancel_op))
        if summary_name is not None:
            note_fullness(queue, summary_name, 1.0 / capacity)
        return queue


def note_fullness(queue: QueueBase, name: str, scale: float) -> None:
    """Records a summary of how full a queue is."""
    size = record_source(
        "QueueFullness",
        lambda resources: [np.float32(len(queue.buffer(resources)))],
        dtypes=[float32],
        shapes=[[]],
        name=f"{queue.name.rpartition('/')[2]}_Size",
    ).outputs[0]
    summary.scalar(name, recorded(multiply)(size, np.float32(scale)))


def string_input_producer(
    string_tensor: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> QueueBase:
    """A queue of strings, such as the names of files.

    Raises:
      ValueError: there are none.
    """
    empty = "string_input_producer requires a non-null input tensor"
    if not isinstance(string_tensor, Tensor) and not len(string_tensor):
        raise ValueError(empty)
    with name_scope(name, "input_producer", [string_tensor]) as scope:
        texts = convert(string_tensor, string)

        def check(_: Any, value: Any) -> list[Any]:
            if not len(value):
                raise InvalidArgumentError(None, op, empty)
            return [value]

        op = record_source("Assert", check, [texts], dtypes=[string], shapes=[texts.shape])
        return input_producer(
            op.outputs[0],
            [],
            num_epochs,
            shuffle,
            seed,
            capacity,
            shared_name,
            f"fraction_of_{capacity}_full",
            scope,
            cancel_op,
        )


def range_input_producer(
    limit: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> QueueBase:
    """A queue of the numbers from 0 up to a limit."""
    with name_scope(name, "input_producer", [limit]) as scope:
        numbers = record_source(
            "Range",
            lambda _, many: [np.arange(many, dtype=np.int32)],
            [convert(limit, int32)],
            dtypes=[int32],
            shapes=[[None]],
        ).outputs[0]
        return input_producer(
            numbers, [], num_epochs, shuffle, seed, capacity, shared_name, f"fraction_of_{capacity}_full", scope
        )


def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """One row of each tensor, the same of all of them, from a queue of rows.

    Raises:
      ValueError: there are no tensors.
    """
    if not tensor_list:
        raise ValueError("Expected at least one tensor in slice_input_producer().")
    with name_scope(name, "input_producer", list(tensor_list)):
        tensors = [convert(one) for one in tensor_list]
        known = tensors[0].shape.as_list()[0]
        limit = _rows(tensors[0]) if known is None else known
        queue = range_input_producer(limit, num_epochs, shuffle, seed, capacity, shared_name)
        place = queue.dequeue()
        return [recorded(gather)(one, place) for one in tensors]


def _rows(tensor: Tensor) -> Tensor:
    return record_source("Size", lambda _, rows: [np.int32(len(rows))], [tensor], dtypes=[int32], shapes=[[]]).outputs[
        0
    ]
