"""Reading MNIST's files: every name they go by, and every way in which they can be wrong."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trainband.data import idx, load, mnist
from trainband.errors import DataError

SIZES = {"train": 7, "t10k": 3}


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def contents() -> dict[str, bytes]:
    """Four small files in MNIST's form, by their plain names."""
    random = np.random.RandomState(7)
    files = {}
    for part, size in SIZES.items():
        images = random.randint(0, 256, (size, 28, 28)).astype(np.uint8)
        labels = random.randint(0, 10, size).astype(np.uint8)
        files[f"{part}-images-idx3-ubyte"] = idx_bytes(images)
        files[f"{part}-labels-idx1-ubyte"] = idx_bytes(labels)
    return files


def dotted(name: str) -> str:
    return name.replace("-idx", ".idx")


@pytest.mark.parametrize(
    ("rename", "encode"),
    [
        (str, bytes),
        (dotted, bytes),
        (lambda name: f"{name}.gz", gzip.compress),
        (lambda name: f"{dotted(name)}.gz", gzip.compress),
        (str, gzip.compress),  # some archives were packed twice, or lost their suffix
        (lambda name: f"{name}.gz", bytes),  # some browsers unpack on the way and keep the name
    ],
    ids=["plain", "dotted", "gz", "dotted-gz", "gz-named-plain", "plain-named-gz"],
)
def test_reads_every_name_in_use(
    tmp_path: Path, rename: Callable[[str], str], encode: Callable[[bytes], bytes]
) -> None:
    files = contents()
    for name, data in files.items():
        (tmp_path / rename(name)).write_bytes(encode(data))
    dataset = load(tmp_path)
    for part, split in (("train", dataset.train), ("t10k", dataset.test)):
        assert len(split) == SIZES[part]
        assert split.images.tobytes() == files[f"{part}-images-idx3-ubyte"][16:]
        np.testing.assert_array_equal(split.labels, list(files[f"{part}-labels-idx1-ubyte"][8:]))


def with_labels(labels: list[int]) -> bytes:
    return idx_bytes(np.array(labels, np.uint8))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "train-images-idx3-ubyte",
            lambda _: None,
            r"looked for train-images-idx3-ubyte, train-images\.idx3.*download",
        ),
        ("t10k-labels-idx1-ubyte", lambda _: None, r"looked for t10k-labels-idx1-ubyte"),
        ("train-images-idx3-ubyte", lambda d: d[:-1], r"train-images-idx3-ubyte is cut off: shape \[7, 28, 28\]"),
        ("train-images-idx3-ubyte", lambda d: d + b"x", r"is too long"),
        ("train-images-idx3-ubyte", lambda d: d[:9], r"ends inside its header, after 9 of 16 bytes"),
        ("train-images-idx3-ubyte", lambda _: b"", r"starts with nothing"),
        ("train-images-idx3-ubyte", lambda d: b"PK\3\4" + d[4:], r"starts with 50 4b 03 04, but"),
        # An idx file of another element type, and labels where images should be.
        ("train-images-idx3-ubyte", lambda d: b"\0\0\x0d\3" + d[4:], r"starts with 00 00 0d 03"),
        ("train-images-idx3-ubyte", lambda _: with_labels([1] * 7), r"starts with 00 00 08 01.*right file"),
        ("train-images-idx3-ubyte", lambda _: idx_bytes(np.zeros((7, 8, 8), np.uint8)), r"got uint8\[7, 8, 8\]"),
        ("train-labels-idx1-ubyte", lambda _: with_labels([1] * 6), r"7 images, but 6 labels"),
        ("train-labels-idx1-ubyte", lambda _: with_labels([0, 1, 10, 2, 3, 4, 5]), r"label 2 is 10; labels are 0\.\.9"),
        ("t10k-labels-idx1-ubyte", lambda d: gzip.compress(d)[:-3], r"damaged gzip"),
        ("t10k-labels-idx1-ubyte", lambda d: gzip.compress(d)[:-8] + bytes(8), r"damaged gzip"),
        ("t10k-labels-idx1-ubyte", lambda d: gzip.compress(d)[:12] + b"\xff" * 20, r"damaged gzip"),
    ],
)
def test_names_what_is_wrong(tmp_path: Path, name: str, change: Callable[[bytes], bytes | None], message: str) -> None:
    for each, data in contents().items():
        changed = change(data) if each == name else data
        if changed is not None:
            (tmp_path / each).write_bytes(changed)
    with pytest.raises(DataError, match=message) as caught:
        mnist.read(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not a directory; looked for"):
        mnist.read(tmp_path / "nowhere")


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    for name in contents():
        shape = (0, 28, 28) if "images" in name else (0,)
        (tmp_path / name).write_bytes(idx_bytes(np.zeros(shape, np.uint8)))
    with pytest.raises(DataError, match="there are no images"):
        mnist.read(tmp_path)


def test_a_file_that_is_none_makes_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data")
    with pytest.raises(DataError, match="not a regular file"):
        idx.read(tmp_path / "data", 1)
