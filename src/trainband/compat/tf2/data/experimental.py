"""`tf.data.experimental`: what it has beside the methods of datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import int64
from trainband.compat.tf1.graphs.errors import FailedPreconditionError
from trainband.compat.tf1.input.record_files import TFRecordWriter as FileWriter
from trainband.compat.tf2.data.blocks import Blocks
from trainband.compat.tf2.data.contents import text_of
from trainband.compat.tf2.data.dataset import AUTOTUNE, Dataset
from trainband.compat.tf2.data.function import Mode
from trainband.compat.tf2.data.passes import INFINITE, Pass, Recipe
from trainband.compat.tf2.eager.tensor import Tensor

Transformation = Callable[[Any], Any]


def _applied(method: str) -> Callable[..., Transformation]:
    """A function that gives a transformation: the method of that name."""

    def make(*args: Any, **kwargs: Any) -> Transformation:
        return lambda dataset: getattr(dataset, method)(*args, **kwargs)

    make.__name__ = method
    return make


unbatch = _applied("unbatch")
unique = _applied("unique")
scan = _applied("scan")
take_while = _applied("take_while")
enumerate_dataset = _applied("enumerate")
group_by_window = _applied("group_by_window")
bucket_by_sequence_length = _applied("bucket_by_sequence_length")
ignore_errors = _applied("ignore_errors")
snapshot = _applied("snapshot")
rejection_resample = _applied("rejection_resample")


def shuffle_and_repeat(buffer_size: Any, count: Any = None, seed: Any = None) -> Transformation:
    """Shuffles, then repeats."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Any,
    num_parallel_batches: Any = None,
    drop_remainder: Any = False,
    num_parallel_calls: Any = None,
) -> Transformation:
    """Maps, then batches."""
    calls = num_parallel_batches if num_parallel_calls is None else num_parallel_calls
    return lambda dataset: dataset.map(map_func, calls).batch(batch_size, drop_remainder)


def parallel_interleave(
    map_func: Callable[..., Any],
    cycle_length: Any,
    block_length: Any = 1,
    sloppy: Any = False,
    buffer_output_elements: Any = None,
    prefetch_input_elements: Any = None,
) -> Transformation:
    """Interleaves, always in the same order."""
    del sloppy, buffer_output_elements, prefetch_input_elements
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def prefetch_to_device(device: str, buffer_size: Any = None) -> Transformation:
    """Computes elements ahead."""
    del device
    return lambda dataset: dataset.prefetch(AUTOTUNE if buffer_size is None else buffer_size)


def copy_to_device(target_device: str, source_device: str = "/cpu:0") -> Transformation:
    """Changes nothing: a computation takes what it needs to its device."""
    del target_device, source_device
    return lambda dataset: dataset


def Counter(start: Any = 0, step: Any = 1, dtype: Any = int64) -> Dataset:  # noqa: N802 - TensorFlow's name
    """Whole numbers without end."""
    return Dataset.counter(start, step, dtype)


def RandomDataset(seed: Any = None, **_: Any) -> Dataset:  # noqa: N802
    """Random whole numbers below 2**32, without end."""
    return Dataset.random(seed)


def cardinality(dataset: Any) -> Tensor:
    """How many elements there are, or that this is infinite or unknown."""
    found: Tensor = dataset.cardinality()
    return found


def assert_cardinality(expected_cardinality: Any) -> Transformation:
    """Says how many elements there are. If that is wrong, the pass raises `FailedPreconditionError`."""
    count = int(np.asarray(expected_cardinality))

    def counted(parent: Recipe) -> Recipe:
        def start(run: Pass) -> Blocks:
            found = 0
            for block in parent.start(run):
                found += block.size
                if count != INFINITE and found > count:
                    raise FailedPreconditionError(
                        None, None, f"Input dataset was expected to contain {count} elements but contained at least "
                        f"{found} elements."
                    )  # fmt: skip
                yield block
            if found != count:
                expected = "an infinite number of" if count == INFINITE else count
                raise FailedPreconditionError(
                    None, None, f"Input dataset was expected to contain {expected} elements but contained only {found} "
                    "elements."
                )  # fmt: skip

        return Recipe(kind="assert", start=start, spec=parent.spec, count=lambda: count, is_cheap=parent.is_cheap)

    return lambda dataset: dataset.then(counted)


def get_single_element(dataset: Any) -> Any:
    """The only element."""
    return dataset.get_single_element()


def choose_from_datasets(datasets: Any, choice_dataset: Any, stop_on_empty_dataset: bool = False) -> Dataset:
    """Elements of the datasets whose numbers another one gives."""
    return Dataset.choose_from_datasets(datasets, choice_dataset, stop_on_empty_dataset)


def sample_from_datasets(
    datasets: Any, weights: Any = None, seed: Any = None, stop_on_empty_dataset: bool = False
) -> Dataset:
    """Elements of datasets that are drawn with some weights."""
    return Dataset.sample_from_datasets(datasets, weights, seed, stop_on_empty_dataset)


def save(dataset: Any, path: Any, compression: Any = None, shard_func: Any = None, checkpoint_args: Any = None) -> None:
    """Writes all elements to a directory, which `load` reads; not in TensorFlow's format."""
    dataset.save(path, compression, shard_func, checkpoint_args)


def load(path: Any, element_spec: Any = None, compression: Any = None, reader_func: Any = None) -> Dataset:
    """The elements that `save` wrote."""
    return Dataset.load(path, element_spec, compression, reader_func)


def enable_debug_mode() -> None:
    """Has the functions of datasets run as they stand, for each element, so that a debugger can stop in them."""
    Mode.is_debugged = True


class TFRecordWriter:
    """Writes the elements of a dataset, which are texts, to a TFRecord file."""

    def __init__(self, filename: Any, compression_type: Any = None) -> None:
        self._filename, self._compression = text_of(filename, "filename"), compression_type

    def write(self, dataset: Any) -> None:
        """Writes all elements.

        Raises:
          TypeError: they are no texts.
        """
        with FileWriter(self._filename, self._compression) as writer:
            for record in dataset.as_numpy_iterator():
                if not isinstance(record, bytes):
                    raise TypeError(f"`dataset` must produce scalar `DT_STRING` tensors, got {record!r}.")
                writer.write(record)


def get_structure(dataset_or_iterator: Any) -> Any:
    """What is known of the elements."""
    return dataset_or_iterator.element_spec
