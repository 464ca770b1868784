"""Files that say more than is in them, or lead elsewhere: TensorFlow's checkpoints, HDF5 weights, GraphDefs."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest

from trainband.checkpoint.hdf5 import opened_hdf5
from trainband.compat.checkpoints import tensor_bundle
from trainband.compat.checkpoints.tensor_bundle import read_bundle
from trainband.compat.tf1.graphs.errors import DataLossError
from trainband.compat.tf1.input.crc32c import masked_crc32c
from trainband.compat.tf1.protos.graph import TensorProto
from trainband.compat.tf1.protos.tensor import array_of_proto
from trainband.errors import DataError

HEAD, SHAPE, ENTRY = (tensor_bundle._MESSAGES[f"Bundle{name}"] for name in ("Head", "Shape", "Entry"))  # noqa: SLF001
VALUE = np.arange(4, dtype=np.float32)


def number(value: int) -> bytes:
    """A number of seven bits a byte."""
    found = b""
    while value >= 0x80:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def block(*entries: bytes) -> bytes:
    """Entries with what is behind them: no restarts, no compression, the checksum."""
    body = b"".join(entries) + struct.pack("<II", 0, 1) + b"\x00"
    return body + struct.pack("<I", masked_crc32c(body))


def entry(key: bytes, value: bytes, shared: int = 0) -> bytes:
    """One, which repeats this much of the key before it."""
    return number(shared) + number(len(key)) + number(len(value)) + key + value


def place(offset: int, size: int) -> bytes:
    """Where a block is; its last 5 bytes do not count."""
    return number(offset) + number(size - 5)


def table(*blocks: bytes, places: list[bytes] | None = None) -> bytes:
    """An index of these blocks."""
    known, at = [], 0
    for one in blocks:
        known.append(place(at, len(one)))
        at += len(one)
    index = block(*(entry(b"%d" % n, one) for n, one in enumerate(known if places is None else places)))
    footer = number(0) + number(0) + place(at, len(index))
    return b"".join(blocks) + index + footer.ljust(40, b"\x00") + struct.pack("<Q", 0xDB4775248B80FB57)


def told(**fields: Any) -> bytes:
    """What an index says of a variable `v` of four float32, with other fields."""
    known = {"dtype": 1, "size": VALUE.nbytes, "shape": shape(4), "crc32c": masked_crc32c(VALUE.tobytes())}
    return bytes(ENTRY(**known | fields).SerializeToString())


def shape(*sizes: int) -> Any:
    """As an index has it."""
    made = SHAPE()
    for size in sizes:
        made.dim.add(size=size)
    return made


def head(**fields: Any) -> bytes:
    """The first entry of an index."""
    return entry(b"", bytes(HEAD(**fields).SerializeToString()))


def variable(**fields: Any) -> bytes:
    """An index of one variable."""
    return table(block(head(num_shards=1), entry(b"v", told(**fields))))


MANY = block(*(entry(b"%06d" % at, b"") for at in range(100_000)))
SLICED = told(shape=shape(1 << 40), slices=[{"extent": [{"start": 0, "length": 4}]}])
HOSTILE: dict[str, bytes] = {
    "a shard that is not there": variable(shard_id=7),
    "a shard before the first": variable(shard_id=-1),
    "a place before the file": variable(offset=-16),
    "a shape of a terabyte": variable(shape=shape(1 << 38)),
    "a negative shape": variable(shape=shape(-2, -2)),
    "texts without end": variable(dtype=7, size=16, shape=shape(1 << 40)),
    "an unknown type": variable(dtype=99, size=16),
    "two thousand million shards": table(block(head(num_shards=2_000_000_000))),
    "parts that do not add up": table(block(head(num_shards=1), entry(b"\x00v\x00\x01x", told()), entry(b"v", SLICED))),
    "a number without end": table(block(b"\x80" * 100_000)),
    "a name behind the block": table(block(number(0) + number(1 << 40) + number(0))),
    "a name that repeats nothing": table(block(entry(b"v", told(), shared=1 << 40))),
    "one block ten thousand times": table(MANY, places=[place(0, len(MANY))] * 10_000),
    "a block behind the file": table(block(), places=[place(1 << 40, 100)]),
    "a block of a wrong size": table(block(), places=[number(0) + number(1 << 62)]),
    "names that are nothing but repeated": table(
        block(entry(b"k" * (1 << 20), b""), *(entry(b"k", b"", shared=(1 << 20) + at) for at in range(2000)))
    ),
    "an entry that is no message": table(block(head(num_shards=1), entry(b"v", b"\xff" * 40))),
    "names that are no text": table(block(head(num_shards=1), entry(b"\xff", told()))),
    "no table": b"\x00" * 100,
    "nothing": b"",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_checkpoint_of_tensorflow_that_says_more_than_it_has(tmp_path: Path, what: str) -> None:
    (tmp_path / "model.index").write_bytes(HOSTILE[what])
    (tmp_path / "model.data-00000-of-00001").write_bytes(VALUE.tobytes())
    before, started = psutil.Process().memory_info().rss, time.process_time()
    with pytest.raises(DataLossError, match=r"model\.(index|data)"):
        read_bundle(str(tmp_path / "model"))
    assert time.process_time() - started < 5.0
    assert psutil.Process().memory_info().rss - before < 700 << 20


def test_a_sound_one_is_read_and_a_fifo_is_not(tmp_path: Path) -> None:
    (tmp_path / "model.index").write_bytes(variable())
    data = tmp_path / "model.data-00000-of-00001"
    data.write_bytes(VALUE.tobytes())
    assert np.array_equal(read_bundle(str(tmp_path / "model"))["v"], VALUE)
    (tmp_path / "model.index").unlink()
    os.mkfifo(tmp_path / "model.index")
    with pytest.raises(DataLossError, match="it is not a regular file"):
        read_bundle(str(tmp_path / "model"))


def external_link(file: Any, other: Path) -> None:
    file["kernel"] = h5py.ExternalLink(str(other), "kernel")


def external_storage(file: Any, other: Path) -> None:
    file.create_dataset("kernel", (4,), np.uint8, external=[(str(other), 0, 4)])


def virtual(file: Any, other: Path) -> None:
    layout = h5py.VirtualLayout((4,), np.float32)
    layout[:] = h5py.VirtualSource(str(other), "kernel", (4,))
    file.create_virtual_dataset("kernel", layout)


def soft_link(file: Any, other: Path) -> None:
    del other
    file["kernel"] = h5py.SoftLink("/kernel")


def huge(file: Any, other: Path) -> None:
    del other
    file.create_dataset("kernel", (1 << 30, 1 << 10), np.float32, chunks=(1024, 1024))


def deep(file: Any, other: Path) -> None:
    """The bad one is far below, in a group that is also its own ancestor."""
    inner = file.create_group("/".join("g" * 200))
    inner["again"] = file["g"]
    external_link(inner, other)


@pytest.mark.parametrize("change", [external_link, external_storage, virtual, soft_link, huge, deep])
def test_weights_of_hdf5_that_are_elsewhere(tmp_path: Path, change: Callable[[Any, Path], None]) -> None:
    other, path = tmp_path / "other.h5", tmp_path / "weights.h5"
    with h5py.File(other, "w") as file:
        file["kernel"] = VALUE
    with h5py.File(path, "w") as file:
        change(file, other)
    with pytest.raises(DataError, match=str(path)), opened_hdf5(path):
        raise AssertionError("it was opened")


def test_weights_of_hdf5_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "weights.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a/kernel", data=np.zeros((1000, 1000), np.float32), compression="gzip")
        file["b/kernel"] = file["a/kernel"]
    with opened_hdf5(path) as file:
        assert file["b/kernel"].shape == (1000, 1000)
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + b"\xff" * 1000)
    with pytest.raises(DataError, match=str(path)), opened_hdf5(path):
        raise AssertionError("it was opened")


def test_a_constant_of_a_terabyte_is_refused() -> None:
    tensor = TensorProto(dtype=1, float_val=[1.0])
    tensor.tensor_shape.dim.add(size=1 << 38)
    with pytest.raises(ValueError, match="larger than"):
        array_of_proto(tensor)
    tensor.tensor_shape.dim.add(size=-1)
    with pytest.raises(ValueError, match="none at all"):
        array_of_proto(tensor)
