"""The embedded digits are scikit-learn's, and their enlargement never changes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from trainband.data import digits
from trainband.data.dataset import CLASSES
from trainband.errors import DataError


def test_embedded_digits_are_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    rows = digits.read_rows()
    np.testing.assert_array_equal(rows[:, :-1], theirs.data)
    np.testing.assert_array_equal(rows[:, -1], theirs.target)


def test_same_bits_everywhere() -> None:
    """A change of the enlargement or of the split would make every published accuracy incomparable."""
    dataset = digits.read()
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.test):
        digest.update(split.images.tobytes())
        digest.update(split.labels.astype("<i4").tobytes())
    assert digest.hexdigest() == "7433461eca8d9fd2324a9825147947d85a0bee724f8f90ea57c9d5f7dc516db2"


def test_split_is_stratified_and_complete() -> None:
    dataset = digits.read()
    assert (len(dataset.train), len(dataset.test)) == (1442, 355)
    train = np.bincount(dataset.train.labels, minlength=CLASSES)
    test = np.bincount(dataset.test.labels, minlength=CLASSES)
    np.testing.assert_array_equal(train + test, np.bincount(digits.read_rows()[:, -1]))
    np.testing.assert_array_equal(test, (train + test) // 5)


def test_enlarge_keeps_the_margin_and_the_range() -> None:
    """A full 8x8 square: paper in MNIST's margin of 4 pixels, full ink inside, fading at the edge only."""
    enlarged = digits.enlarge(np.full((1, 8, 8), 16, np.uint8))[0]
    margin = np.ones((28, 28), bool)
    margin[4:24, 4:24] = False
    assert enlarged[margin].max() == 0
    assert enlarged[6:22, 6:22].min() == 255
    assert 0 < enlarged[4, 12] < 255


def test_enlarge_is_bilinear() -> None:
    """One pixel of full ink against the textbook formula, in double precision."""
    small = np.zeros((1, 8, 8), np.uint8)
    small[0, 2, 5] = 16
    centre = (np.arange(20) + 0.5) * 8 / 20 - 0.5
    rows = np.clip(1 - np.abs(centre - 2), 0, None)
    columns = np.clip(1 - np.abs(centre - 5), 0, None)
    wanted = 255 * np.outer(rows, columns)
    np.testing.assert_allclose(digits.enlarge(small)[0, 4:24, 4:24], wanted, atol=0.5 + 1e-9)


def test_a_lost_data_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.resources.files", lambda _: tmp_path)
    with pytest.raises(DataError, match=r"digits\.gz cannot be read .* install trainband again"):
        digits.read()
