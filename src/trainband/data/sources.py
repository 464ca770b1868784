"""The sources of a dataset: the digits in the package, or MNIST's files in a directory."""

from __future__ import annotations

import os

from trainband.data import digits, mnist
from trainband.data.dataset import Dataset
from trainband.errors import DataError


def load(data_dir: str | os.PathLike[str] | None = None, *, download: bool = False) -> Dataset:
    """Load handwritten digits of 28x28 pixels; both sources have the same form.

    Args:
      data_dir: a directory with MNIST's four files, or None for the 1797 digits that are part of the package.
      download: fetch what data_dir lacks, see `trainband.data.mnist.download`. Never done unless asked for.

    Returns:
      A train and a test part.

    Raises:
      DataError: a file is missing or damaged, or download is asked for without a data_dir.
      PeerError: the download failed; see `trainband.data.mnist.download`.
    """
    if data_dir is None:
        if download:
            raise DataError("download=True needs a data_dir to put MNIST's files in; nothing was downloaded.")
        return digits.read()
    return mnist.download(data_dir) if download else mnist.read(data_dir)
