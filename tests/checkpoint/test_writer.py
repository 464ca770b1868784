"""One file: what is written is what is read, and whatever was altered is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tests.checkpoint.samples import KERNEL, flip, rows
from tests.descriptors import open_descriptors

from trainband.checkpoint import DTYPES, Part, PartReader, Piece, write_part
from trainband.errors import CheckpointError, DamagedCheckpoint
from trainband.runtime.aligned import aligned_empty


def write(directory: Path, **values: np.ndarray[Any, Any]) -> Part:
    return write_part(directory, "part", ps=0, version=3, pieces=[rows(name, value) for name, value in values.items()])


@pytest.fixture
def kernel(tmp_path: Path) -> Part:
    return write_part(tmp_path, "part", ps=0, version=3, pieces=[rows("kernel", KERNEL, 2, 9), rows("bias", KERNEL[0])])


def read_all(path: Path, part: Part) -> list[np.ndarray[Any, Any]]:
    with PartReader(path, part) as reader:
        return [reader.read(s, s.piece.start, s.piece.stop) for s in part.pieces]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (4,), (3, 0), (3, 2, 5)])
def test_every_dtype_and_shape_comes_back(tmp_path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    raw = np.random.default_rng(1).integers(0, 2, (*shape, dtype.itemsize)).astype(np.uint8)
    values = raw.reshape(-1).view(dtype).reshape(shape)
    part = write(tmp_path, x=values)
    (back,) = read_all(tmp_path / "part", part)
    assert (back.dtype, back.shape, back.tobytes()) == (dtype, shape, values.tobytes())
    assert part.nbytes == (tmp_path / "part").stat().st_size


@pytest.mark.usefixtures("kernel")
def test_other_programs_can_read_it(tmp_path: Path) -> None:
    loaded = load_file(tmp_path / "part")
    assert loaded.keys() == {"kernel[2:9]", "bias"}
    np.testing.assert_array_equal(loaded["kernel[2:9]"], KERNEL[2:9])


def test_what_is_read_is_fresh_writable_and_aligned(tmp_path: Path, kernel: Part) -> None:
    with PartReader(tmp_path / "part", kernel) as reader:
        first, second = (reader.read(kernel.pieces[0], 3, 5) for _ in range(2))
    first[:] = 0.0
    np.testing.assert_array_equal(second, KERNEL[3:5])
    assert first.ctypes.data % 64 == 0
    assert aligned_empty((), np.dtype(np.float64)).shape == ()


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(("start", "stop"), [(2, 9), (2, 3), (8, 9), (4, 7), (5, 5), (2, 2), (9, 9)])
def test_rows_are_counted_in_the_tensor(tmp_path: Path, kernel: Part, start: int, stop: int, check: bool) -> None:
    with PartReader(tmp_path / "part", kernel) as reader:
        np.testing.assert_array_equal(reader.read(kernel.pieces[0], start, stop, check), KERNEL[start:stop])


@pytest.mark.parametrize(("start", "stop"), [(1, 5), (2, 10), (5, 4), (-1, 3)])
def test_rows_of_another_piece_are_refused(tmp_path: Path, kernel: Part, start: int, stop: int) -> None:
    with PartReader(tmp_path / "part", kernel) as reader, pytest.raises(ValueError, match=r"kernel|negative"):
        reader.read_into(np.empty((1, 6), np.float32), kernel.pieces[0], start, stop)


def test_pieces_larger_than_a_chunk(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 255, (2500, 1021), np.uint8)  # 2.4 MiB
    part = write(tmp_path, x=values)
    with PartReader(tmp_path / "part", part) as reader:
        np.testing.assert_array_equal(reader.read(part.pieces[0], 0, 2500), values)
        np.testing.assert_array_equal(reader.read(part.pieces[0], 1111, 2345), values[1111:2345])


@pytest.mark.parametrize("values", [KERNEL.T, KERNEL[:, ::2], KERNEL[::-1], KERNEL.astype(">f4")], ids=range(4))
def test_what_is_not_contiguous_or_little_endian_is_made_so(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    (back,) = read_all(tmp_path / "part", write(tmp_path, x=values))
    np.testing.assert_array_equal(back, values)


def test_contiguous_values_are_not_copied(tmp_path: Path) -> None:
    values = np.zeros(4 << 20, np.uint8)
    values.flags.writeable = False
    import tracemalloc  # NumPy tells it of its buffers

    tracemalloc.start()
    write(tmp_path, x=values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.nbytes / 2


def test_an_empty_part(tmp_path: Path) -> None:
    assert read_all(tmp_path / "part", write(tmp_path)) == []


@pytest.mark.parametrize(
    ("piece", "values"),
    [
        (Piece("x", (3,), "float32", 0, 3), np.zeros(4, np.float32)),
        (Piece("x", (3,), "float32", 0, 2), np.zeros(3, np.float32)),
        (Piece("x", (3,), "float32", 0, 3), np.zeros(3, np.float64)),
        (Piece("x", (), "float32", 0, 1), np.zeros(1, np.float32)),
    ],
)
def test_values_of_another_kind_are_refused(tmp_path: Path, piece: Piece, values: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"^x(\[0:2\])? is float32"):
        write_part(tmp_path, "part", ps=0, version=0, pieces=[(piece, values)])
    assert not list(tmp_path.iterdir())


def test_a_piece_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        write_part(tmp_path, "part", ps=0, version=0, pieces=[rows("x", KERNEL), rows("x", KERNEL)])


@pytest.mark.parametrize("name", ["../part", "a/b", "", "manifest.json"])
def test_a_file_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="plain name"):
        write_part(tmp_path, name, ps=0, version=0, pieces=[])


def test_it_is_as_readable_as_its_directory(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o750)
    write(tmp_path / "shared", x=KERNEL)
    assert (tmp_path / "shared" / "part").stat().st_mode & 0o777 == 0o640


# What disks and people do to files.


def test_a_missing_file(tmp_path: Path, kernel: Part) -> None:
    (tmp_path / "part").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"part is missing"):
        read_all(tmp_path / "part", kernel)


@pytest.mark.parametrize("size", [0, 7, 8, 50, -1])
def test_a_file_cut_short(tmp_path: Path, kernel: Part, size: int) -> None:
    os.truncate(tmp_path / "part", size % kernel.nbytes)
    with pytest.raises(DamagedCheckpoint, match=rf"has {size % kernel.nbytes} bytes, not {kernel.nbytes}"):
        read_all(tmp_path / "part", kernel)


def test_a_file_cut_short_while_it_is_read(tmp_path: Path, kernel: Part) -> None:
    with PartReader(tmp_path / "part", kernel) as reader:
        os.truncate(tmp_path / "part", kernel.nbytes - 100)
        last = max(kernel.pieces, key=lambda stored: reader.offsets[stored.name])
        with pytest.raises(DamagedCheckpoint, match=r"ends within .* bytes too early"):
            reader.verify(last)


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    part = write(tmp_path, kernel=KERNEL[:3], bias=KERNEL[0], count=np.array(3))
    path = tmp_path / "part"
    good = path.read_bytes()
    for at in range(len(good)):
        for bits in (1, 32, 128):
            flip(path, at, bits)
            with pytest.raises(DamagedCheckpoint, match=r"part (has|holds|does not hold|ends)"):
                read_all(path, part)
            path.write_bytes(good)


def test_a_flipped_byte_outside_the_rows_is_noticed_unless_asked_not_to(tmp_path: Path, kernel: Part) -> None:
    flip(tmp_path / "part", -1)  # in the last row
    with PartReader(tmp_path / "part", kernel) as reader:
        last = max(kernel.pieces, key=lambda s: reader.offsets[s.name])
        with pytest.raises(DamagedCheckpoint, match=r"checksum is xxh3_128:\w+; the manifest expects xxh3_128:"):
            reader.read(last, last.piece.start, last.piece.start)
        reader.read(last, last.piece.start, last.piece.start, check=False)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"{", "header that is not a safetensors"),
        (b"\xff", "header that is not a safetensors"),
        (b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}}', "not a safetensors"),
        (b"{}", "does not hold x"),
        (b'{"y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "does not hold x"),
        (b'{"x":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}', r"I32\[2\] of 8 bytes, not as F32\[2\] of 8"),
        (b'{"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}', r"F32\[2, 1\]"),
        (b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "of 4 bytes, not as"),
        (b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}', "at byte 4, not at 0"),
        (b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}', "at byte -8, not at 0"),
        (
            b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}}',
            "holds y",
        ),
    ],
)
def test_a_header_that_disagrees_with_the_manifest(tmp_path: Path, header: bytes, says: str) -> None:
    part = write(tmp_path, x=np.zeros(2, np.float32))
    data = len(header).to_bytes(8, "little") + header + bytes(8)
    (tmp_path / "part").write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=says):
        read_all(tmp_path / "part", msgspec.structs.replace(part, nbytes=len(data)))


@pytest.mark.parametrize("length", [2**63, 10**6, 2**64 - 1])
def test_a_header_longer_than_the_file(tmp_path: Path, kernel: Part, length: int) -> None:
    data = (tmp_path / "part").read_bytes()
    (tmp_path / "part").write_bytes(length.to_bytes(8, "little") + data[8:])
    with pytest.raises(DamagedCheckpoint, match="has a header of"):
        read_all(tmp_path / "part", kernel)


def test_bytes_that_nothing_tells_of(tmp_path: Path, kernel: Part) -> None:
    with (tmp_path / "part").open("ab") as file:
        file.write(b"more")
    with pytest.raises(DamagedCheckpoint, match=r"tensors, but its header describes"):
        read_all(tmp_path / "part", msgspec.structs.replace(kernel, nbytes=kernel.nbytes + 4))


@given(st.data())
def test_any_rows_of_any_piece(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("part")
    start = data.draw(st.integers(0, 9))
    stop = data.draw(st.integers(start + 1, 10))
    part = write_part(directory, "p", ps=0, version=0, pieces=[rows("x", KERNEL, start, stop)])
    low = data.draw(st.integers(start, stop))
    high = data.draw(st.integers(low, stop))
    with PartReader(directory / "p", part) as reader:
        np.testing.assert_array_equal(reader.read(part.pieces[0], low, high), KERNEL[low:high])


def test_reading_outside_the_with_statement(tmp_path: Path, kernel: Part) -> None:
    reader = PartReader(tmp_path / "part", kernel)
    with reader:
        pass
    with pytest.raises(ValueError, match="not open"):
        reader.read_into(np.empty((7, 6), np.float32), kernel.pieces[0], 2, 9)


def test_no_descriptor_is_left(tmp_path: Path, kernel: Part) -> None:
    before = open_descriptors()
    for _ in range(3):
        read_all(tmp_path / "part", kernel)
        with pytest.raises(DamagedCheckpoint):
            read_all(tmp_path / "part", msgspec.structs.replace(kernel, nbytes=kernel.nbytes + 1))
        write(tmp_path, other=KERNEL)
        with pytest.raises(DamagedCheckpoint):
            read_all(tmp_path / "part", kernel)
        kernel = write_part(tmp_path, "part", ps=0, version=3, pieces=[rows("kernel", KERNEL, 2, 9)])
    assert open_descriptors() == before


# Disks that refuse.


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "tiny"
    place.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=False).returncode
    ):
        pytest.skip("mounting a file system is for root")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_full_disk(tiny_disk: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"part: No space left.*4,194,304 bytes are needed, [\d,]+ are free.*make room"
    ):
        write(tiny_disk, x=np.zeros(4 << 20, np.uint8))
    assert not list(tiny_disk.iterdir())


LIMITED = """
import resource, signal, sys
import numpy as np
from pathlib import Path
from trainband.checkpoint import Piece, write_part
from trainband.errors import CheckpointError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
values = np.zeros(1 << 20, np.uint8)
try:
    piece = Piece("x", values.shape, "uint8", 0, 1 << 20)
    write_part(Path(sys.argv[1]), "part", ps=0, version=0, pieces=[(piece, values)])
except CheckpointError as error:
    print(error)
"""


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, tmp_path], capture_output=True, text=True, check=True)
    assert f"cannot write {tmp_path / 'part'}: File too large" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write .*nowhere/part: No such file.*shared file system"):
        write(tmp_path / "nowhere", x=KERNEL)


def test_a_sync_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CheckpointError, match=r"part: Input/output error"):
        write(tmp_path, x=KERNEL)
    assert not list(tmp_path.iterdir())
