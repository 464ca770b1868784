"""Exports whose files somebody else has written: what they name is in them, hashed, and of a size that is believed."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband
from trainband.errors import YourError
from trainband.export import artifact, export_program, loader
from trainband.serve import ArtifactSource


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small export."""
    out = tmp_path_factory.mktemp("exports") / "sound"
    predictor = trainband.Predictor(lambda params, batch: batch * params["factor"], example=np.ones((3, 2), np.float32))
    export_program(predictor.program({"params/factor": np.array(2, np.float32)}), out, "stablehlo")
    return out


Change = Callable[[Path, dict[str, Any]], None]


def changed(**fields: Any) -> Change:
    """Other fields of the manifest."""
    return lambda _, manifest: manifest.update(fields)


def of_format(**fields: Any) -> Change:
    """Other fields of the format."""
    return lambda _, manifest: manifest["format"].update(fields)


def outside(directory: Path, manifest: dict[str, Any]) -> None:
    shutil.copy(directory / "weights.safetensors", directory.parent / "outside.safetensors")
    manifest["format"]["weights"] = "../outside.safetensors"
    manifest["sha256"]["../outside.safetensors"] = manifest["sha256"]["weights.safetensors"]


def link(directory: Path, _: dict[str, Any]) -> None:
    shutil.move(directory / "weights.safetensors", directory.parent / "outside.safetensors")
    (directory / "weights.safetensors").symlink_to("../outside.safetensors")


def fifo(directory: Path, _: dict[str, Any]) -> None:
    (directory / "weights.safetensors").unlink()
    os.mkfifo(directory / "weights.safetensors")


def weights(data: bytes) -> Change:
    """Another file of weights, with its hash."""

    def change(directory: Path, manifest: dict[str, Any]) -> None:
        (directory / "weights.safetensors").write_bytes(data)
        manifest["sha256"]["weights.safetensors"] = artifact.sha256(directory / "weights.safetensors")

    return change


def header(entry: Any) -> bytes:
    """A file of weights with this entry."""
    text = json.dumps({"params/factor": entry}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(4)


def program(directory: Path, manifest: dict[str, Any]) -> None:
    (directory / "program.jax_export").write_bytes(b"\xff" * 100)
    manifest["sha256"]["program.jax_export"] = artifact.sha256(directory / "program.jax_export")


INPUT = {"name": "input", "dtype": "float32", "shape": ["batch", 2]}
HOSTILE: dict[str, tuple[Change, str]] = {
    "a file outside": (outside, "not a file of an export"),
    "a file outside without a hash": (of_format(weights="../outside.safetensors"), "which sha256 does not list"),
    "an absolute file": (of_format(weights="/etc/passwd"), "which sha256 does not list"),
    "the directory itself": (of_format(weights="."), "which sha256 does not list"),
    "no name": (of_format(program=7), "which sha256 does not list"),
    "no hashes": (changed(sha256={}), "which sha256 does not list"),
    "an empty hash": (changed(sha256={"weights.safetensors": ""}), "with its hash"),
    "a link": (link, "is not the file that was exported"),
    "a FIFO": (fifo, "it is not a regular file"),
    "a name of two lines": (changed(name="predict\nready"), "which is not a function's name"),
    "no time": (changed(made="yesterday"), "Invalid isoformat"),
    "a huge shape": (changed(signature={"inputs": [{**INPUT, "shape": [1 << 40]}], "outputs": []}), "larger than any"),
    "many axes": (changed(signature={"inputs": [{**INPUT, "shape": [1] * 1000}], "outputs": []}), "larger than any"),
    "an unknown format": (changed(target="pickle"), "pickle"),
    "no program": (lambda _, manifest: manifest["format"].pop("program"), "program"),
    "no weights": (weights(b""), "cannot be loaded"),
    "a long header": (weights(struct.pack("<Q", 1 << 62) + b"{}"), "not a weights file"),
    "a deep header": (weights(struct.pack("<Q", 100_000) + b"[" * 100_000), "not a weights file"),
    "weights outside": (weights(header({"dtype": "F32", "shape": [], "data_offsets": [0, 400]})), "outside it"),
    "weights before": (weights(header({"dtype": "F32", "shape": [], "data_offsets": [-40, -36]})), "outside it"),
    "weights of no type": (weights(header({"dtype": "O", "shape": [], "data_offsets": [0, 4]})), "not a weights file"),
    "a huge weight": (weights(header({"dtype": "F32", "shape": [9**9], "data_offsets": [0, 4]})), "not a weights file"),
    "a broken program": (program, "cannot be loaded"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_it_is_refused_by_name(sound: Path, tmp_path: Path, what: str) -> None:
    change, found = HOSTILE[what]
    directory = tmp_path / "out"
    shutil.copytree(sound, directory)
    manifest = json.loads((directory / "manifest.json").read_text())
    change(directory, manifest)
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(YourError, match=str(directory)) as refused:
        ArtifactSource(directory).open()
    assert found in str(refused.value)
    with pytest.raises(YourError, match=str(directory)):
        artifact.load(directory).compiled()


@pytest.mark.parametrize("what", ["a file outside", "an empty hash", "a link", "weights before"])
def test_the_loader_beside_it_refuses_it_too(sound: Path, tmp_path: Path, what: str) -> None:
    directory = tmp_path / "out"
    shutil.copytree(sound, directory)
    manifest = json.loads((directory / "manifest.json").read_text())
    HOSTILE[what][0](directory, manifest)
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"weights|is not the file"):
        loader.load(directory)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"\xff\xfe", b'{"name": "\xff"}', b" " * (17 << 20)])
def test_a_manifest_that_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(YourError, match=str(tmp_path)):
        artifact.load(tmp_path)


def test_links_within_the_directory_are_followed(sound: Path, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    shutil.copytree(sound, directory / "stored")
    for path in (directory / "stored").iterdir():
        (directory / path.name).symlink_to(path.relative_to(directory))
    assert ArtifactSource(directory).open().signature.batched
