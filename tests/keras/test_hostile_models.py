"""Files of Keras models that somebody else has written: no code, no other file, no more than they seem to hold."""

from __future__ import annotations

import base64
import json
import marshal
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import keras
from trainband.errors import DataError, ModelError
from trainband.keras import model_files
from trainband.keras.model_files import check_model_file
from trainband.keras.predictor import predictor_of_file

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

KERNEL = "layers/dense/vars/0"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model."""
    path = tmp_path_factory.mktemp("models") / "sound.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="dense")]).save(path)
    return path


def changed(sound: Path, path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The same model with other files in it."""
    with zipfile.ZipFile(sound) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def weights(change: Callable[[Any, Path], None]) -> Callable[[dict[str, bytes], Path], None]:
    """Changes the file of weights."""

    def inside(members: dict[str, bytes], folder: Path) -> None:
        path = folder / "weights.h5"
        path.write_bytes(members["model.weights.h5"])
        with h5py.File(path, "a") as file:
            del file[KERNEL]
            change(file, folder)
        members["model.weights.h5"] = path.read_bytes()

    return inside


def linked(file: Any, folder: Path) -> None:
    with h5py.File(folder / "other.h5", "w") as other:
        other["kernel"] = np.ones((4, 3), np.float32)
    file[KERNEL] = h5py.ExternalLink(str(folder / "other.h5"), "kernel")


def stored_elsewhere(file: Any, folder: Path) -> None:
    (folder / "secret").write_bytes(bytes(48))
    file.create_dataset(KERNEL, (4, 3), np.float32, external=[(str(folder / "secret"), 0, 48)])


def huge(file: Any, folder: Path) -> None:
    del folder
    file.create_dataset(KERNEL, (1 << 20, 1 << 14), np.float32, chunks=(1024, 1024))


def layer(module: str, name: str, config: Any) -> Callable[[dict[str, bytes], Path], None]:
    """Appends a layer."""

    def inside(members: dict[str, bytes], folder: Path) -> None:
        text = members["config.json"].decode()
        described = json.loads(text)
        described["config"]["layers"].append(
            {"module": module, "class_name": name, "config": config(folder), "registered_name": None}
        )
        members["config.json"] = json.dumps(described).encode()

    return inside


def code(folder: Path) -> dict[str, Any]:
    """A layer of a function that leaves a trace."""
    function = compile(f"lambda x: open({str(folder / 'trace')!r}, 'w') and x", "", "eval").co_consts[0]
    text = base64.b64encode(marshal.dumps(function)).decode()
    return {
        "name": "l",
        "function": {"class_name": "__lambda__", "config": {"code": text, "defaults": None, "closure": None}},
    }


def replaced(name: str, content: bytes) -> Callable[[dict[str, bytes], Path], None]:
    """Another file."""
    return lambda members, _: members.update({name: content})


HOSTILE: dict[str, tuple[Callable[[dict[str, bytes], Path], None], str]] = {
    "weights behind a link": (weights(linked), "refers to another file"),
    "weights in another file": (weights(stored_elsewhere), "refers to another file"),
    "weights of 64 GB": (weights(huge), "which it does not contain"),
    "a lambda": (layer("keras.layers", "Lambda", code), "Lambda"),
    "a class of Python's": (layer("os", "system", lambda folder: {"command": f"touch {folder / 'trace'}"}), ""),
    "a file outside": (replaced("../../outside", b""), "outside its directory"),
    "an absolute file": (replaced("/tmp/outside", b""), "outside its directory"),
    "a description of 65 MB": (replaced("config.json", b'{"a":"' + b"a" * (65 << 20) + b'"}'), "would unpack to"),
    "a deep description": (replaced("config.json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "recursion"),
    "an asset of 65 MB": (replaced("assets/big", bytes(65 << 20)), "would unpack to"),
    "weights that are none": (replaced("model.weights.h5", b"\x89HDF\r\n\x1a\n" + bytes(100)), "not an HDF5 file"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_it_is_refused_by_name(sound: Path, tmp_path: Path, what: str) -> None:
    change, found = HOSTILE[what]
    path = changed(sound, tmp_path / "model.keras", lambda members: change(members, tmp_path))
    with pytest.raises(ModelError, match=str(path)) as refused:
        predictor_of_file(path)
    assert found in str(refused.value)
    assert not (tmp_path / "trace").exists()


def test_many_files_two_of_one_name_and_half_a_file(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.keras"
    path.write_bytes(sound.read_bytes()[:-30])
    with pytest.raises(ModelError, match=str(path)):
        predictor_of_file(path)
    path.write_bytes(sound.read_bytes())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("config.json", b"{}")
    with pytest.raises(DataError, match="two files of the same name"):
        check_model_file(path)
    monkeypatch.setattr(model_files, "MOST_MEMBERS", 3)
    with pytest.raises(DataError, match="the limit is 3"):
        check_model_file(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="it is not a regular file"):
        check_model_file(path)


def test_shards_of_weights_lie_beside_their_list(tmp_path: Path) -> None:
    listed = tmp_path / "model.weights.json"
    with h5py.File(tmp_path / "part.weights.h5", "w") as file:
        file["kernel"] = np.ones(3)
    for name, found in (
        ("../outside.h5", "outside its directory"),
        ("/etc/passwd", "outside its directory"),
        (7, "does not list"),
    ):
        listed.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(DataError, match=found):
            check_model_file(listed)
    listed.write_text(json.dumps({"weight_map": {"a": ["part.weights.h5"]}}))
    check_model_file(listed)


def test_the_old_format_runs_no_code_either(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(path)
    with h5py.File(path, "a") as file:
        described = json.loads(file.attrs["model_config"])
        described["config"]["layers"].append(
            {"module": "keras.layers", "class_name": "Lambda", "config": code(tmp_path)}
        )
        file.attrs["model_config"] = json.dumps(described)
    with pytest.raises(ModelError, match=str(path)):
        predictor_of_file(path)
    assert not (tmp_path / "trace").exists()
