"""Everything that Keras takes as data, beside plain Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from tests.keras.beside import expect_as_keras, expect_same, fits, one_device, rows, small, trained

import keras
from trainband.errors import DataError, NonFiniteGradient

X, Y = rows()
STEP = 2e-5


class Dataset(keras.utils.PyDataset):  # type: ignore[misc]
    """4 batches of 16, in another order in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        there = slice((index + self.epoch) % 4 * 16, (index + self.epoch) % 4 * 16 + 16)
        return X[there], Y[there], np.linspace(0, 2, 16, dtype=np.float32)

    def on_epoch_end(self) -> None:
        self.epoch += 1


def endless() -> Iterator[Any]:
    while True:
        for start in range(0, 64, 16):
            yield X[start : start + 16], Y[start : start + 16]


def one_pass() -> Any:
    return ((X[start : start + 16], Y[start : start + 16]) for start in range(0, 64, 16))


def grain_loader() -> Any:
    grain = pytest.importorskip("grain", reason="grain is not installed")
    return grain.MapDataset.source(list(zip(X, Y, strict=True))).batch(16).to_iter_dataset()


def tf_data() -> Any:
    tensorflow = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    return tensorflow.data.Dataset.from_tensor_slices((X, Y)).batch(16)


def torch_loader() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return torch.utils.data.DataLoader(pairs, batch_size=16, shuffle=False)


INPUTS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "PyDataset": (Dataset, {}),
    "a generator": (endless, {"steps_per_epoch": 3}),
    "a generator of one pass": (one_pass, {"epochs": 1}),
    "grain": (grain_loader, {}),
    "tf.data": (tf_data, {}),
    "DataLoader": (torch_loader, {}),
}


@pytest.mark.parametrize("name", INPUTS)
def test_data(name: str) -> None:
    make, settings = INPUTS[name]
    make()

    def fit(model: Any) -> Any:
        ends = pytest.warns(UserWarning, match="ran out of data")
        with ends if name in ("a generator of one pass", "grain") else nullcontext():
            return fits(make(), batch_size=None, shuffle=name == "PyDataset", **settings)(model)

    expect_as_keras(small, fit, STEP)


def test_a_generator_that_ends_early() -> None:
    with pytest.raises(DataError, match=r"the data ended in epoch 2, after 2 of its 3 steps; repeat it"):
        trained(small, fits(one_pass(), batch_size=None, shuffle=False, steps_per_epoch=3), one_device())


def test_a_generator_that_raises() -> None:
    def broken() -> Iterator[Any]:
        yield X[:16], Y[:16]
        yield X[:16], Y[:16]
        raise OSError("the disk with the pictures is gone")

    with pytest.raises(OSError, match="the disk with the pictures is gone"):
        trained(small, fits(broken(), batch_size=None, shuffle=False, steps_per_epoch=20), one_device())


def test_batches_whose_structure_changes() -> None:
    def changing() -> Iterator[Any]:
        yield X[:16], Y[:16]
        yield X[:7], Y[:7]  # another size is well
        while True:
            yield X[:16].astype("float64")[:, :, None], Y[:16]

    with pytest.raises(DataError, match=r"a batch is .* with 3 axes.*those before were .*float32 with 2 axes"):
        trained(small, fits(changing(), batch_size=None, shuffle=False, steps_per_epoch=20), one_device())


def test_losses_that_are_not_finite() -> None:
    """One is left out; a model that gives nothing else is given up."""
    bad = X.copy()
    bad[16:32] = np.nan
    model, _ = trained(small, fits(bad, Y, epochs=1, shuffle=False), one_device())
    others, _ = trained(
        small, fits(np.delete(X, slice(16, 32), 0), np.delete(Y, slice(16, 32)), epochs=1, shuffle=False), one_device()
    )
    expect_same(model, others, STEP)
    with pytest.raises(NonFiniteGradient, match="100 gradients in a row were not finite"):
        trained(small, fits(np.full_like(X, np.nan), Y, epochs=30), one_device())
