"""The result of a reader: labelled images, split into a train and a test part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError

IMAGE_SHAPE = (28, 28)
CLASSES = 10


@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """Labelled images; both arrays are made read-only, so that a split can be shared without copies.

    Attributes:
      images: uint8[n, 28, 28], grey levels: 0 is paper, 255 is ink.
      labels: int32[n], 0..9.

    Raises:
      DataError: a wrong dtype or shape, no images, different numbers of images and labels, or a label over 9.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int32]

    def __post_init__(self) -> None:
        """Check what the types cannot express, then make the arrays read-only."""
        images, labels = self.images, self.labels
        if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != IMAGE_SHAPE:
            raise DataError(f"images must be uint8[n, 28, 28], got {images.dtype}{list(images.shape)}.")
        if labels.dtype != np.int32 or labels.ndim != 1:
            raise DataError(f"labels must be int32[n], got {labels.dtype}{list(labels.shape)}.")
        if len(images) != len(labels):
            raise DataError(f"{len(images)} images, but {len(labels)} labels; every image needs one label.")
        if len(images) == 0:
            raise DataError("there are no images.")
        wrong = np.flatnonzero((labels < 0) | (labels >= CLASSES))
        if wrong.size:
            raise DataError(f"label {wrong[0]} is {labels[wrong[0]]}; labels are 0..{CLASSES - 1}.")
        for name, array in (("images", images), ("labels", labels)):
            shared = array.view()
            shared.flags.writeable = False
            object.__setattr__(self, name, shared)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)


@dataclass(frozen=True, eq=False, slots=True)
class Dataset:
    """Images to train on and images to test with; no image is in both."""

    train: Split
    test: Split
