"""What `fit`, `evaluate` and `predict` are given: datasets and tensors, as Keras reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.keras.inside import unpack, weights_sample
from trainband.compat.tf2.keras.lifting import is_leaf
from trainband.keras.keras_internals import DataAdapter
from trainband.runtime.overrides import override

_INFINITE = -1


def is_dataset(value: Any) -> bool:
    """Whether a value is a dataset as `tf.data` has it."""
    return hasattr(value, "element_spec") and hasattr(value, "__iter__") and not is_leaf(value)


def arrays(value: Any) -> Any:
    """A structure with NumPy's arrays in place of tensors."""
    return jax.tree.map(lambda one: np.asarray(one.numpy()) if is_leaf(one) else one, value, is_leaf=is_leaf)


class DatasetCreator:
    """A function that makes each worker's dataset of an `InputContext`, as parameter server training has it.

    Args:
      dataset_fn: of an InputContext, to a dataset of batches.
      input_options: accepted, and without an effect.
    """

    def __init__(self, dataset_fn: Any, input_options: Any = None) -> None:
        if not callable(dataset_fn):
            raise TypeError(f"`dataset_fn` for `DatasetCreator` must be a `callable`. Received: {dataset_fn}")
        self.dataset_fn = dataset_fn
        self.input_options = input_options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self.dataset_fn(*args, **kwargs)
        if not is_dataset(found):
            raise TypeError(f"The `callable` provided to `DatasetCreator` must return a Dataset. It returns {found!r}")
        return found


class DatasetAdapter(DataAdapter):  # type: ignore[misc]
    """A dataset of batches, as Keras's loops read it.

    Args:
      dataset: of batches.
      class_weight: weights of examples, by their classes.
      part: (index, count): of each batch, which of so many equal parts is read; all of it, if left out.
      narrows: whether numbers of 64 bits become those of 32, which is what Keras computes with.
    """

    def __init__(
        self, dataset: Any, class_weight: Any = None, part: tuple[int, int] | None = None, *, narrows: bool = True
    ) -> None:
        self._dataset = dataset
        self._class_weight = class_weight
        self._part = part
        self._narrows = narrows

    @override
    def get_numpy_iterator(self) -> Iterator[Any]:
        batches = self._dataset.as_numpy_iterator() if hasattr(self._dataset, "as_numpy_iterator") else self._dataset
        for batch in batches:
            found = _tuples(arrays(batch))
            if self._narrows:
                found = jax.tree.map(narrow, found)
            if self._part is not None:
                found = _cut(found, *self._part)
                if found is None:
                    continue
            if self._class_weight is not None:
                x, y, weights = unpack(found)
                if weights is not None:
                    raise ValueError(
                        "You cannot `class_weight` and `sample_weight` at the same time: the dataset gives weights."
                    )
                found = x, y, weights_sample(y, self._class_weight)
            yield found

    @override
    def get_jax_iterator(self) -> Iterator[Any]:
        return self.get_numpy_iterator()

    @property
    @override
    def num_batches(self) -> int | None:
        count = cardinality(self._dataset)
        return count if count >= 0 else None

    @property
    @override
    def batch_size(self) -> int | None:
        return None

    @property
    @override
    def has_partial_batch(self) -> bool | None:
        return None

    @property
    @override
    def partial_batch_size(self) -> None:
        pass


def narrow(array: Any) -> Any:
    """An array, of 32 bits in place of 64."""
    if array.dtype.kind not in "iuf" or array.dtype.itemsize < 8:
        return array
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32)


def _tuples(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _cut(batch: Any, index: int, count: int) -> Any:
    """One of so many equal parts of a batch; `None` where there are fewer rows than parts."""
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(batch)}
    size = min(rows) // count
    if not size:
        return None
    return jax.tree.map(lambda leaf: leaf[index * size : (index + 1) * size], batch)


def cardinality(dataset: Any) -> int:
    """The number of elements; -1: no end; -2: unknown."""
    found = getattr(dataset, "cardinality", None)
    return -2 if found is None else int(found() if callable(found) else found)


def check_end(dataset: Any, steps: Any, name: str, argument: str) -> None:
    """Demands an end of what is read until its end.

    Raises:
      ValueError: there is none.
    """
    if steps is None and cardinality(dataset) == _INFINITE:
        raise ValueError(
            f"{name}: when passing an infinitely repeating dataset, please specify a `{argument}` value so that epoch "
            "level callbacks continue to work. The value can be arbitrary, or a number that you think correctly "
            "defines the size of an epoch."
        )
