"""`tensorflow.examples.tutorials.mnist.input_data`: MNIST from local files, or else the digits in the package.

Nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.data import Dataset, Split, load
from trainband.runtime.waiting import say_on_stderr

_PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")


class DataSet:
    """Images and labels, in shuffled batches."""

    def __init__(self, images: NDArray[Any], labels: NDArray[Any], seed: int | None = None) -> None:
        self._images, self._labels = images, labels
        self._random = np.random.RandomState(seed)
        self._completed = 0
        self._at = 0
        self._order = np.arange(len(labels))

    @property
    def images(self) -> NDArray[Any]:
        """float32[n, 784] of 0..1, or as `read_data_sets` was asked."""
        return self._images

    @property
    def labels(self) -> NDArray[Any]:
        """uint8[n], or one-hot float64[n, 10]."""
        return self._labels

    @property
    def num_examples(self) -> int:
        """How many."""
        return len(self._labels)

    @property
    def epochs_completed(self) -> int:
        """How many times all examples have been used."""
        return self._completed

    def next_batch(
        self, batch_size: int, fake_data: bool = False, shuffle: bool = True
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the next batch; at the end of an epoch, its rest and the beginning of the next."""
        del fake_data
        if self._at == 0 and self._completed == 0 and shuffle:
            self._random.shuffle(self._order)
        chosen = self._order[self._at : self._at + batch_size]
        self._at += batch_size
        if self._at > len(self._order):
            self._completed += 1
            if shuffle:
                self._order = self._random.permutation(len(self._order))
            self._at = batch_size - len(chosen)
            chosen = np.concatenate([chosen, self._order[: self._at]])
        return self._images[chosen], self._labels[chosen]


@dataclass(frozen=True, slots=True)
class Datasets:
    """The three parts."""

    train: DataSet
    validation: DataSet
    test: DataSet


def read_data_sets(
    train_dir: Any,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = np.float32,
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str = "",
) -> Datasets:
    """Read MNIST from the directory's idx files; if there are none, read the digits in the package, and say so."""
    del fake_data, source_url
    data = _found(Path(str(train_dir)))
    held_back = min(validation_size, len(data.train) // 10)

    def part(split: Split, start: int, stop: int | None) -> DataSet:
        images: NDArray[Any] = split.images[start:stop]
        images = images.reshape(len(images), -1) if reshape else images[..., None]
        kind = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
        if kind != np.uint8:
            images = (images.astype(np.float32) / np.float32(255)).astype(kind)
        labels: NDArray[Any] = split.labels[start:stop].astype(np.uint8)
        return DataSet(images, np.eye(10)[labels] if one_hot else labels, seed)

    return Datasets(
        train=part(data.train, held_back, None),
        validation=part(data.train, 0, held_back),
        test=part(data.test, 0, None),
    )


def _found(directory: Path) -> Dataset:
    if all(any(directory.glob(f"{part}*-ubyte*")) for part in _PARTS):
        return load(directory)
    data = load()
    say_on_stderr(
        f"MNIST is not in {directory}: read_data_sets uses the small digits in the package and downloads nothing"
    )
    return data
