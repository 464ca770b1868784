"""A manifest that decodes is one that every row can be read by; anything else is refused by name."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.samples import manifest, write_parts

from trainband.checkpoint import DTYPES, Manifest, Part, Piece, Stored, decode, encode
from trainband.errors import DamagedCheckpoint

CHECKSUM = "xxh3_128:" + "0" * 32
Document = dict[str, Any]


def stored(tensor: str, shape: tuple[int, ...], start: int, stop: int, dtype: str = "float32") -> Stored:
    piece = Piece(tensor, shape, dtype, start, stop)
    return Stored(piece, piece.key, CHECKSUM)


def part(file: str, *pieces: Stored, ps: int = 0) -> Part:
    return Part(file, sum(s.piece.nbytes for s in pieces) + 100, ps, 1, pieces)


@pytest.fixture
def document(tmp_path: Path) -> Document:
    document: Document = json.loads(encode(manifest(write_parts(tmp_path), trainings=(0, 3), metrics={"loss": 0.5})))
    return document


def test_what_is_encoded_decodes_to_the_same(tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    worker_part = part("worker.safetensors", stored("worker:0/rng", (2,), 0, 2, "uint32"))
    whole = manifest(
        parts,
        sources={"train": '{"epoch": 1}'},
        trainings=(0, 3),
        complete=True,
        metrics={"loss": 0.5},
        worker_part=worker_part,
    )
    data = encode(whole)
    assert decode(data, "manifest.json") == whole
    assert b'\n "global_step": 7,\n' in data  # laid out for reading


def test_defaults_need_not_be_there(document: Document) -> None:
    for name in ("workers", "sources", "trainings", "complete", "metrics", "worker_part"):
        del document[name]
    assert decode(json.dumps(document).encode(), "m").workers == {}


def test_a_metric_that_is_not_finite_is_left_out() -> None:
    data = encode(manifest((), metrics={"loss": math.nan, "error": math.inf, "accuracy": 0.5}))
    assert decode(data, "m").metrics == {"accuracy": 0.5}


def test_tensors_are_whole_and_in_order(tmp_path: Path) -> None:
    tensors = manifest(write_parts(tmp_path)).tensors
    assert list(tensors) == ["params/hidden/kernel", "optimizer/0/count", "params/hidden/empty", "model_state/mean"]
    assert tensors["params/hidden/kernel"] == Piece("params/hidden/kernel", (10, 6), "float32", 0, 10)


def test_worker_tensors_are_tensors() -> None:
    whole = manifest((), worker_part=part("w", stored("worker:0/rng", (2,), 0, 2)))
    assert list(whole.tensors) == ["worker:0/rng"]
    assert [p.file for p in whole.files] == ["w"]


@pytest.mark.parametrize(
    ("piece", "rows", "whole", "shape", "size", "nbytes", "key", "text"),
    [
        (Piece("a/b", (5, 3), "float32", 1, 4), 5, False, (3, 3), 9, 36, "a/b[1:4]", "a/b float32[5,3]"),
        (Piece("a", (5,), "bfloat16", 0, 5), 5, True, (5,), 5, 10, "a", "a bfloat16[5]"),
        (Piece("a", (), "int64", 0, 1), 1, True, (), 1, 8, "a", "a int64[]"),
        (Piece("a", (0, 7), "bool", 0, 0), 0, True, (0, 7), 0, 0, "a", "a bool[0,7]"),
        (Piece("a", (3, 0), "int8", 0, 2), 3, False, (2, 0), 0, 0, "a[0:2]", "a int8[3,0]"),
    ],
)
def test_piece(
    piece: Piece, rows: int, whole: bool, shape: tuple[int, ...], size: int, nbytes: int, key: str, text: str
) -> None:
    found = (piece.rows, piece.whole, piece.piece_shape, piece.size, piece.nbytes, piece.key, str(piece))
    assert found == (rows, whole, shape, size, nbytes, key, text)
    assert piece.row_nbytes * (piece.stop - piece.start) == nbytes


def changed(*path: str | int, value: object) -> Callable[[Document], None]:
    """A lie: another value at a place in the document."""

    def lie(document: Document) -> None:
        at: Any = document
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    lie.__name__ = "/".join(map(str, path)) + f"={value!r}"
    return lie


def drop(*path: str | int) -> Callable[[Document], None]:
    """A lie: something left out."""

    def lie(document: Document) -> None:
        at: Any = document
        for step in path[:-1]:
            at = at[step]
        del at[path[-1]]

    lie.__name__ = "without " + "/".join(map(str, path))
    return lie


PIECE = ("parts", 0, "pieces", 0, "piece")
LIES: list[tuple[Callable[[Document], None], str]] = [
    (changed("format", value=2), "format 2.*reads format 1; read it with trainband 0.1.0"),
    (changed("format", value="1"), "format"),
    (drop("format"), "format"),
    (drop("parts"), "parts"),
    (changed("colour", value=1), "colour"),
    (changed("global_step", value=-1), "global_step is -1"),
    (changed("global_step", value=1.5), "global_step"),
    (changed("created_at", value=-1.0), "created_at"),
    (changed("created_at", value=None), "created_at"),
    (changed("trainings", value=[0, -3]), "trainings"),
    (changed("complete", value=1), "complete"),
    (changed("workers", "worker:0", "steps", value=-1), "steps is -1"),
    (changed("workers", "worker:0", value=3), "workers"),
    # file names that lead elsewhere
    *(
        (changed("parts", 0, "file", value=name), "file ")
        for name in ("", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b")
    ),
    *(
        (changed("parts", 0, "file", value=name), "file ")
        for name in ("a..b", "a\0b", "a\nb", "a\x7fb", "manifest.json")
    ),
    (changed("parts", 0, "file", value="ps-1.safetensors"), "parts have a duplicate file"),
    (changed("parts", 0, "file", value=7), r"parts\[0\].file"),
    (changed("parts", 0, "nbytes", value=-1), "nbytes is -1"),
    (changed("parts", 0, "nbytes", value=99), "nbytes of ps-0.safetensors is 99, but its pieces have 100 bytes"),
    (changed("parts", 0, "ps", value=-1), "ps is -1"),
    (changed("parts", 0, "version", value=-1), "version is -1"),
    # tensors
    *(
        (changed(*PIECE, "tensor", value=name), "has a part")
        for name in ("", "/a", "a/", "a//b", "./a", "a/../b", "..")
    ),
    *((changed(*PIECE, "tensor", value=name), "safetensors file can hold") for name in ("a\nb", "__metadata__")),
    (changed(*PIECE, "tensor", value="other"), "name is 'params/hidden/kernel"),
    (changed(*PIECE, "shape", value=[10, -6]), "negative number"),
    (changed(*PIECE, "shape", value=[-10, 6]), "negative number"),
    (changed(*PIECE, "shape", value=[10, 6, 2**70]), "is larger than an array can be"),
    (changed(*PIECE, "shape", value=[10, 6.5]), "shape"),
    (changed(*PIECE, "dtype", value="float33"), "dtype .* 'float33'"),
    (changed(*PIECE, "dtype", value="object"), "dtype"),
    (changed(*PIECE, "start", value=-1), "start and stop"),
    (changed(*PIECE, "start", value=4), "start and stop"),
    (changed(*PIECE, "start", value=5), "start and stop"),
    (changed(*PIECE, "stop", value=11), "start and stop"),
    (changed("parts", 0, "pieces", 0, "name", value="params/hidden/kernel"), "name is"),
    *(
        (changed("parts", 0, "pieces", 0, "checksum", value=text), "checksum")
        for text in ("", "0" * 32, "md5:" + "0" * 32, "xxh3_128:" + "0" * 31, "xxh3_128:" + "g" * 32, CHECKSUM + "\n")
    ),
    (drop("parts", 1), "leave out rows 4 to 9"),
    (drop("parts", 0), "leave out rows 0 to 3"),
]


@pytest.mark.parametrize(("lie", "names"), LIES, ids=[lie.__name__ for lie, _ in LIES])
def test_a_lie_is_refused_and_named(document: Document, lie: Callable[[Document], None], names: str) -> None:
    decode(json.dumps(document).encode(), "m")  # it is the lie alone that is refused
    lie(document)
    with pytest.raises(DamagedCheckpoint, match=names) as caught:
        decode(json.dumps(document).encode(), "/there/manifest.json")
    assert str(caught.value).startswith("/there/manifest.json")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((part("a", stored("x", (4,), 0, 2)), part("b", stored("x", (4,), 1, 4))), "overlap"),
        ((part("a", stored("x", (4,), 0, 4)), part("b", stored("x", (4,), 0, 2))), "overlap"),
        ((part("a", stored("x", (4,), 0, 4)), part("b", stored("x", (4,), 2, 4))), "overlap"),
        ((part("a", stored("x", (4,), 0, 1)), part("b", stored("x", (4,), 2, 4))), "leave out rows 1 to 1"),
        ((part("a", stored("x", (4,), 0, 2)), part("b", stored("x", (4, 1), 2, 4))), "disagree"),
        ((part("a", stored("x", (4,), 0, 2)), part("b", stored("x", (4,), 2, 4, "int32"))), "disagree"),
        ((part("a", stored("x", (), 0, 1)), part("b", stored("x", (1,), 0, 1))), "disagree"),
    ],
)
def test_pieces_that_contradict_one_another(parts: tuple[Part, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        manifest(parts)


def test_one_piece_twice_in_a_file() -> None:
    with pytest.raises(ValueError, match="have a duplicate name"):
        part("a", stored("x", (4,), 0, 4), stored("x", (4,), 0, 4))


def test_the_same_rows_in_two_files_are_allowed() -> None:
    count = stored("optimizer/count", (), 0, 1)
    assert len(manifest((part("a", count), part("b", count, ps=1))).places["optimizer/count"]) == 2
    half = (stored("x", (4,), 0, 2), stored("x", (4,), 2, 4))
    manifest((part("a", *half), part("b", half[1], ps=1)))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 1, "trainband": "\xff"}', b"[" * 100_000, b"null"]
)
def test_what_is_no_json_object(data: bytes) -> None:
    with pytest.raises(DamagedCheckpoint, match=r"^m "):
        decode(data, "m")


@given(st.data())
def test_any_altered_byte_decodes_to_a_manifest_or_is_damage(data: st.DataObject) -> None:
    text = bytearray(encode(manifest((part("a", stored("x", (4,), 0, 4)), part("b", stored("y", (), 0, 1))))))
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DamagedCheckpoint):
        assert isinstance(decode(bytes(text), "m"), Manifest)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_tiling_in_any_order_is_taken_and_with_one_left_out_refused(sizes: list[int], dice: Any) -> None:
    edges = np.cumsum([0, *sizes]).tolist()
    pieces = [stored("x", (edges[-1], 2), a, b) for a, b in itertools.pairwise(edges)]
    dice.shuffle(pieces)
    manifest(tuple(part(f"f{i}", piece) for i, piece in enumerate(pieces)))
    if len(pieces) > 1:
        with pytest.raises(ValueError, match="leave out rows"):
            manifest((part("f", *pieces[1:]),))


def test_ten_thousand_pieces_take_no_time() -> None:
    parts = tuple(
        part(f"ps-{ps}", *(stored(f"params/layer{i}/kernel", (10, 4), 5 * ps, 5 * ps + 5) for i in range(5000)), ps=ps)
        for ps in range(2)
    )
    whole = manifest(parts)
    began = time.process_time()
    assert decode(encode(whole), "m") == whole
    assert time.process_time() - began < 10.0  # it is 0.15 s; seconds would be a quadratic loop


def test_every_dtype_is_known_by_its_own_name() -> None:
    assert {"bool", "int8", "uint64", "float32", "bfloat16", "float8_e4m3fn"} <= DTYPES.keys()
    assert all(name == dtype.name for name, dtype in DTYPES.items())


def test_records_are_frozen() -> None:
    with pytest.raises(AttributeError):
        manifest(()).global_step = 3  # type: ignore[misc]
    assert msgspec.structs.replace(manifest(()), global_step=3).global_step == 3
