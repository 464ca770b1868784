"""A committed checkpoint: read tensor by tensor, verified whole, and compared with a model."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.checkpoint.samples import EMPTY, HALF, KERNEL, commit, flip, manifest, write_parts

from trainband.checkpoint import Checkpoint, CheckpointDirectory, Piece, reader
from trainband.errors import CheckpointError, DamagedCheckpoint, ModelMismatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return commit(CheckpointDirectory(tmp_path, print), 7)


def test_open(path: Path) -> None:
    checkpoint = Checkpoint.open(path)
    assert checkpoint.global_step == 7
    assert checkpoint.nbytes == sum((path / f"ps-{i}.safetensors").stat().st_size for i in range(2))
    assert checkpoint.verify() == []


@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (0, 4), (4, 10), (3, 5), (0, 1), (9, 10), (2, 9), (5, 5), (10, 10)]
)
def test_rows_across_files(path: Path, start: int, stop: int | None) -> None:
    back = Checkpoint.open(path).read("params/hidden/kernel", start, stop)
    np.testing.assert_array_equal(back, KERNEL[start:stop])
    assert back.flags.writeable
    assert back.ctypes.data % 64 == 0 or not back.size


def test_the_other_tensors(path: Path) -> None:
    checkpoint = Checkpoint.open(path)
    assert checkpoint.read("params/hidden/empty").shape == EMPTY.shape
    half = checkpoint.read("model_state/mean", 1)
    assert (half.dtype, half.tolist()) == (HALF.dtype, HALF[1:].tolist())


def test_what_lies_on_each_ps_is_read_from_the_preferred(path: Path) -> None:
    checkpoint = Checkpoint.open(path)
    counts = [int(checkpoint.read("optimizer/0/count", prefer_ps=ps)) for ps in (0, 1, 5)]
    assert counts == [7, 9, 7]
    assert int(checkpoint.read("optimizer/0/count")) == 7
    np.testing.assert_array_equal(checkpoint.read("params/hidden/kernel", prefer_ps=1), KERNEL)


def test_only_the_files_needed_are_opened(path: Path) -> None:
    checkpoint = Checkpoint.open(path)
    (path / "ps-1.safetensors").unlink()
    np.testing.assert_array_equal(checkpoint.read("params/hidden/kernel", 1, 4), KERNEL[1:4])
    with pytest.raises(DamagedCheckpoint, match=r"ps-1.safetensors is missing"):
        checkpoint.read("params/hidden/kernel", 1, 5)


def test_a_header_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint.open(path)
    checkpoint.read("params/hidden/kernel")
    monkeypatch.delattr(reader.PartReader, "_read_header")
    np.testing.assert_array_equal(checkpoint.read("params/hidden/kernel"), KERNEL)


@pytest.mark.parametrize(
    ("tensor", "start", "stop"),
    [
        ("params/hidden/kernel", -1, 2),
        ("params/hidden/kernel", 3, 11),
        ("params/hidden/kernel", 3, 2),
        ("optimizer/0/count", 0, 0),
    ],
)
def test_rows_that_are_not_there(path: Path, tensor: str, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=rf"{tensor}.* has rows 0:"):
        Checkpoint.open(path).read(tensor, start, stop)


def test_a_tensor_that_is_not_there(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tensor 'params/hiden/kernel' \(but params/hidden/kernel\)"):
        Checkpoint.open(path).read("params/hiden/kernel")


# Damage.


@pytest.mark.parametrize("name", ["manifest.json", "ps-0.safetensors", "ps-1.safetensors"])
def test_a_missing_file(path: Path, name: str) -> None:
    (path / name).unlink()
    with pytest.raises(DamagedCheckpoint, match=name):
        Checkpoint.open(path)


def test_a_truncated_file(path: Path) -> None:
    with (path / "ps-1.safetensors").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(DamagedCheckpoint, match=r"ps-1.safetensors has 100 bytes, not \d+"):
        Checkpoint.open(path)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint at") as caught:
        Checkpoint.open(tmp_path / "step-000000000009")
    assert not isinstance(caught.value, DamagedCheckpoint)


def test_a_directory_under_another_steps_name(path: Path) -> None:
    path.rename(path.with_name("step-000000000008"))
    with pytest.raises(DamagedCheckpoint, match="has global step 7"):
        Checkpoint.open(path.with_name("step-000000000008"))


def test_a_copy_under_a_free_name(path: Path) -> None:
    path.rename(path.with_name("the-good-one"))
    assert Checkpoint.open(path.with_name("the-good-one")).verify() == []


def test_verify_names_every_damage(path: Path) -> None:
    checkpoint = Checkpoint.open(path)
    flip(path / "ps-0.safetensors", -1)
    flip(path / "ps-1.safetensors", 12)
    first, second = checkpoint.verify()
    assert "ps-0.safetensors has altered bytes in" in str(first)
    assert "ps-1.safetensors" in str(second)


def test_verify_goes_on_to_the_next_piece(path: Path) -> None:
    data = bytearray((path / "ps-1.safetensors").read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    data[header:] = bytes(255 - byte for byte in data[header:])
    (path / "ps-1.safetensors").write_bytes(bytes(data))
    assert len(Checkpoint.open(path).verify()) == 3  # all but the empty one


def test_verify_of_a_file_that_has_gone(path: Path) -> None:
    checkpoint = Checkpoint.open(path)
    (path / "ps-0.safetensors").unlink()
    (damage,) = checkpoint.verify()
    assert "ps-0.safetensors is missing" in str(damage)


# A model's wants.

MODEL = (
    Piece("params/hidden/kernel", (10, 6), "float32", 0, 5),
    Piece("params/hidden/kernel", (10, 6), "float32", 5, 10),
    Piece("params/hidden/empty", (0, 3), "float32", 0, 0),
    Piece("model_state/mean", (3,), "bfloat16", 0, 3),
    Piece("optimizer/0/count", (), "int32", 0, 1),
)


def test_the_same_model_in_other_pieces_and_order(path: Path) -> None:
    checkpoint = Checkpoint.open(path)
    checkpoint.require(MODEL[::-1])
    checkpoint.require([*MODEL, Piece("worker:0/rng", (2,), "uint32", 0, 2)])  # is nobody's model


WIDER = Piece("params/hidden/kernel", (10, 7), "float32", 0, 1)
MISSPELT = Piece("params/hiden/kernel", (10, 6), "float32", 0, 10)
WHOLE_MEAN = Piece("model_state/mean", (3,), "float32", 0, 3)
OUT = Piece("params/out", (2,), "int8", 0, 2)


@pytest.mark.parametrize("params_only", [False, True])
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            MODEL[:2] + MODEL[3:],
            "the checkpoint has params/hidden/empty float32[0,3], the model has no params/hidden/e",
        ),
        ((*MODEL, OUT), "the model has params/out int8[2], the checkpoint has no params/out"),
        (
            (WIDER, *MODEL[2:]),
            "has params/hidden/kernel float32[10,7], the checkpoint has params/hidden/kernel float32[10,6]",
        ),
        ((*MODEL[:3], WHOLE_MEAN), "has model_state/mean float32[3], the checkpoint has model_state/mean bfloat16[3]"),
        ((*MODEL[2:], MISSPELT), "the checkpoint has no params/hiden/kernel (but params/hidden/kernel)"),
    ],
)
def test_another_model(path: Path, model: tuple[Piece, ...], says: str, params_only: bool) -> None:
    with pytest.raises(ModelMismatch, match=re.escape(says)):
        Checkpoint.open(path).require(model, params_only=params_only)


@pytest.mark.parametrize("model", [MODEL[:-1], (*MODEL[:-1], Piece("optimizer/1/mu", (2,), "float32", 0, 2))])
def test_another_optimizer_matters_only_if_it_is_wanted(path: Path, model: tuple[Piece, ...]) -> None:
    checkpoint = Checkpoint.open(path)
    checkpoint.require(model, params_only=True)
    with pytest.raises(ModelMismatch, match="optimizer/"):
        checkpoint.require(model)


def test_a_worker_part_is_read_and_verified(tmp_path: Path) -> None:
    home = CheckpointDirectory(tmp_path, print)
    partial = home.create_partial(3)
    first, second = write_parts(partial)
    with pytest.raises(ValueError, match="leave out rows 0 to 3"):
        manifest((), 3, worker_part=second)
    checkpoint = home.commit(partial, manifest((first,), 3, worker_part=second))
    np.testing.assert_array_equal(checkpoint.read("params/hidden/kernel"), KERNEL)
    (checkpoint.path / second.file).unlink()
    with pytest.raises(DamagedCheckpoint, match=second.file):
        Checkpoint.open(checkpoint.path)
