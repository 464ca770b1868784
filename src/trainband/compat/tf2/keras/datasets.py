"""`tf.keras.datasets`: Keras's own, if their files are there. Nothing is downloaded unasked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trainband.compat.tf2.keras.inside import keras
from trainband.data import load
from trainband.runtime.waiting import say_on_stderr

_FILES = {
    "mnist": "mnist.npz",
    "fashion_mnist": "datasets/fashion-mnist/train-images-idx3-ubyte.gz",
    "cifar10": "cifar-10-batches-py-target",
    "cifar100": "cifar-100-python-target",
    "imdb": "imdb.npz",
    "reuters": "reuters.npz",
    "boston_housing": "boston_housing.npz",
    "california_housing": "california_housing.npz",
}
"""The file of each dataset, in Keras's folder `datasets`."""


def _loading(name: str) -> Callable[..., Any]:
    def load_data(*args: Any, **kwargs: Any) -> Any:
        """The arrays of the dataset; where there is no MNIST, the small digits in the package.

        Raises:
          FileNotFoundError: a file of it is not there.
        """
        given = Path(str(args[0] if args else kwargs.get("path", "")))
        file = Path.home() / ".keras" / "datasets" / _FILES[name]
        if file.exists() or (given.is_absolute() and given.exists()):
            return getattr(keras.datasets, name).load_data(*args, **kwargs)
        if name == "mnist":
            say_on_stderr(f"no {file}: load_data uses the small digits in the package and downloads nothing")
            return _digits()
        raise FileNotFoundError(
            f"tf.keras.datasets.{name}: {file} does not exist, and trainband downloads nothing unasked. Fetch it on a "
            f"machine with a network, for example with `python -c 'import keras; keras.datasets.{name}.load_data()'`."
        )

    return load_data


def _digits() -> Any:
    data = load()
    parts = (data.train, data.test)
    return tuple((np.asarray(one.images, np.uint8), np.asarray(one.labels, np.uint8)) for one in parts)


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return _loading(name)
    raise AttributeError(name)
