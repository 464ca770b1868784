"""1797 handwritten digits that need no download: they are part of the package.

They are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, UCI Machine Learning
Repository, 1998, doi:10.24432/C50P49, CC BY 4.0), the same that scikit-learn ships: 8x8 pixels, each the number of ink
dots (0..16) in a 4x4 block of a 32x32 scan. A test compares them with scikit-learn's bit for bit.

``digits.gz`` is an idx file uint8[1797, 65], a row being 64 pixels and the label. It was made by::

    digits = sklearn.datasets.load_digits()
    rows = numpy.column_stack([digits.data, digits.target]).astype(numpy.uint8)
    header = bytes([0, 0, 8, 2]) + struct.pack(">2I", *rows.shape)
    pathlib.Path("digits.gz").write_bytes(gzip.compress(header + rows.tobytes(), 9, mtime=0))
"""

from __future__ import annotations

from importlib import resources

import numpy as np
from numpy.typing import NDArray

from trainband.data import idx
from trainband.data.dataset import IMAGE_SHAPE, Dataset, Split
from trainband.errors import DataError

_SMALL = 8  # pixels on a side, as published
_BOX = 20  # pixels on a side once enlarged; MNIST's digits, too, fill a 20x20 box in 28x28 pixels
_MARGIN = (IMAGE_SHAPE[0] - _BOX) // 2
_MAX_INK = 16
_TEST_EVERY = 5


def read() -> Dataset:
    """Return the digits, enlarged to MNIST's 28x28 pixels.

    The split is fixed and stratified: within each class, in the published order, every fifth image is for testing.

    Returns:
      1442 images to train on and 355 to test with.

    Raises:
      DataError: the data file is missing from the installed package.
    """
    rows = read_rows()
    labels = rows[:, -1].astype(np.int32)
    images = enlarge(rows[:, :-1].reshape(-1, _SMALL, _SMALL))
    is_test = np.zeros(len(labels), bool)
    for label in range(10):
        is_test[np.flatnonzero(labels == label)[_TEST_EVERY - 1 :: _TEST_EVERY]] = True
    return Dataset(Split(images[~is_test], labels[~is_test]), Split(images[is_test], labels[is_test]))


def read_rows() -> NDArray[np.uint8]:
    """Return the digits as published.

    Returns:
      uint8[1797, 65]: 64 pixels of 0..16, row by row, and the label.

    Raises:
      DataError: the data file is missing from the installed package.
    """
    try:
        data = resources.files("trainband.data").joinpath("digits.gz").read_bytes()
    except OSError as exc:
        raise DataError(f"trainband's own data/digits.gz cannot be read ({exc}); install trainband again.") from exc
    return idx.parse(data, 2, name="trainband's own data/digits.gz")


def enlarge(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Enlarge 8x8 digits to 20x20 by bilinear interpolation, in the middle of 28x28.

    Args:
      images: uint8[n, 8, 8], 0..16.

    Returns:
      uint8[n, 28, 28], 0..255; the same bits on every machine.
    """
    # The weights are whole tenths and all sums stay below 2**24, so float32 holds every value exactly: whatever order
    # a machine's BLAS adds in, the result is the same, at a tenth of the time of a product of integers.
    weights = _tenths()
    count = len(images)
    wide = images.reshape(count * _SMALL, _SMALL).astype(np.float32) @ weights.T
    tall = wide.reshape(count, _SMALL, -1).transpose(0, 2, 1).reshape(-1, _SMALL) @ weights.T
    ink = tall.reshape(count, *IMAGE_SHAPE).transpose(0, 2, 1).astype(np.uint32)
    full = 100 * _MAX_INK
    return ((ink * 255 + full // 2) // full).astype(np.uint8)


def _tenths() -> NDArray[np.float32]:
    """Return the interpolation matrix, float32[28, 8], in tenths; beyond the 8 pixels there is paper."""
    weights = np.zeros((IMAGE_SHAPE[0], _SMALL), np.float32)
    for row in range(_BOX):
        # The centre of pixel `row` lies at (row + 1/2) * 8/20 - 1/2 small pixels, which is (4 * row - 3) tenths.
        below, tenths = divmod(4 * row - 3, 10)
        for column, weight in ((below, 10 - tenths), (below + 1, tenths)):
            if 0 <= column < _SMALL:
                weights[_MARGIN + row, column] = weight
    return weights
