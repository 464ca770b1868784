"""`tf.contrib.learn.datasets`: tables in CSV files. Nothing is downloaded."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainband.compat.tf1.scripts.input_data import read_data_sets
from trainband.runtime.regular_files import regular_file


class Dataset(NamedTuple):
    """Examples and their targets."""

    data: Any
    target: Any


class Datasets(NamedTuple):
    """The three parts."""

    train: Any
    validation: Any
    test: Any


def load_csv_with_header(filename: Any, target_dtype: Any, features_dtype: Any, target_column: int = -1) -> Dataset:
    """Reads a table whose first line begins with the numbers of examples and features."""
    with io.TextIOWrapper(regular_file(str(filename)), encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return _table(rows[1:], target_dtype, features_dtype, target_column)


def load_csv_without_header(filename: Any, target_dtype: Any, features_dtype: Any, target_column: int = -1) -> Dataset:
    """Reads a table."""
    with io.TextIOWrapper(regular_file(str(filename)), encoding="utf-8", newline="") as file:
        return _table(list(csv.reader(file)), target_dtype, features_dtype, target_column)


def _table(rows: list[list[str]], target_dtype: Any, features_dtype: Any, target_column: int) -> Dataset:
    targets = np.array([row.pop(target_column) for row in rows], dtype=target_dtype)
    return Dataset(np.array([np.asarray(row, dtype=features_dtype) for row in rows]), targets)


def maybe_download(filename: str, work_directory: str, source_url: str) -> str:
    """The path of a file that is there.

    Raises:
      FileNotFoundError: it is not; nothing is downloaded.
    """
    path = Path(work_directory) / filename
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist, and trainband downloads nothing: fetch {source_url} yourself.")
    return str(path)


def load_dataset(name: str, size: str = "small", test_with_fake_data: bool = False) -> Any:
    """MNIST, by its name.

    Raises:
      ValueError: another name.
    """
    del size, test_with_fake_data
    if name != "mnist":
        raise ValueError(f"load_dataset: only 'mnist' is available, not {name!r}.")
    return load_mnist()


def load_mnist(train_dir: str = "MNIST-data") -> Any:
    """MNIST, from a directory's files, or the digits in the package."""
    return read_data_sets(train_dir)
