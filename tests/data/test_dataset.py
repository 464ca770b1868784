"""A Split checks what it is given, and cannot be changed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from trainband.data import Split, load
from trainband.errors import DataError

IMAGES = np.zeros((3, 28, 28), np.uint8)
LABELS = np.array([0, 9, 5], np.int32)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.astype(np.float32), LABELS, r"uint8\[n, 28, 28\], got float32\[3, 28, 28\]"),
        (IMAGES.reshape(3, 784), LABELS, r"got uint8\[3, 784\]"),
        (IMAGES, LABELS.astype(np.int64), r"int32\[n\], got int64\[3\]"),
        (IMAGES, LABELS.reshape(3, 1), r"got int32\[3, 1\]"),
        (IMAGES, LABELS[:2], "3 images, but 2 labels"),
        (IMAGES[:0], LABELS[:0], "there are no images"),
        (IMAGES, np.array([0, -1, 0], np.int32), "label 1 is -1"),
        (IMAGES, np.array([0, 1, 10], np.int32), "label 2 is 10"),
    ],
)
def test_refuses(images: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Split(images, labels)


def test_cannot_be_changed() -> None:
    split = load().test
    with pytest.raises(dataclasses.FrozenInstanceError):
        split.labels = LABELS  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        split.images[0] = 1


def test_leaves_the_callers_array_writable() -> None:
    images = IMAGES.copy()
    assert np.shares_memory(Split(images, LABELS).images, images)
    images[0] = 1
