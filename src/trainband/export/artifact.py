"""Artifact: a directory with an exported program and its `manifest.json`."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from trainband.checkpoint.manifest import MOST_DIMENSIONS, MOST_NUMBER, is_plain_name
from trainband.errors import YourError
from trainband.export.targets import TARGETS, target
from trainband.export.targets.base import NO_OPTIONS, Options, Run
from trainband.model.inference import InferenceProgram
from trainband.model.signature import Signature, TensorSpec
from trainband.runtime.regular_files import read_regular, regular_file
from trainband.version import VERSION

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
MOST_MANIFEST_BYTES = 16 << 20
"""Size of the manifest, which lists the inputs, outputs and files."""
MOST_ELEMENTS = 1 << 31
"""Elements of one example of an input or output."""
_FILES = ("program", "weights", "loader", "model")
"""Keys of a format's data that name a file, or a directory of files."""
_SHA256 = re.compile("[0-9a-f]{64}")
_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `manifest.json`.

    Attributes:
      trainband_export: the version of this format.
      target: a name in `TARGETS`.
      format: data of the target: versions, and the role of each file.
      name: of the function.
      signature: inputs and outputs.
      source, global_step: of the weights.
      trainband: the version that exported it.
      made: when, in ISO 8601.
      sha256: of every other file.
      difference: the largest difference of an output from the function's own on the example, by output.
    """

    trainband_export: int
    target: str
    format: dict[str, Any]
    name: str
    signature: Signature
    source: str
    global_step: int
    trainband: str
    made: str
    sha256: dict[str, str]
    difference: dict[str, float] = {}

    def __post_init__(self) -> None:
        """Refuses values that no export has: the manifest is untrusted, and decides which files are read.

        Raises:
          ValueError: names the field.
        """
        if not 0 < len(self.name) <= 200 or _NOT_SHOWN.search(self.name):
            raise ValueError(f"name is {self.name[:50]!r}, which is not a function's name")
        if not 0 <= self.global_step <= MOST_NUMBER:
            raise ValueError(f"global_step is {self.global_step}")
        datetime.fromisoformat(self.made).timestamp()
        for spec in (*self.signature.inputs, *self.signature.outputs):
            _check_spec(spec)
        for file, digest in self.sha256.items():
            if not all(is_plain_name(part) for part in file.split("/")) or not _SHA256.fullmatch(digest):
                raise ValueError(f"sha256 has {file[:100]!r}, which is not a file of an export with its hash")
        for key in _FILES:
            named = self.format.get(key)
            if named is not None and not (isinstance(named, str) and any(_is_in(one, named) for one in self.sha256)):
                raise ValueError(f"{key} of the format is {str(named)[:100]!r}, which sha256 does not list")


@dataclass(frozen=True, slots=True)
class Artifact:
    """An exported program on disk."""

    path: Path
    manifest: Manifest

    @property
    def signature(self) -> Signature:
        """Inputs and outputs."""
        return self.manifest.signature

    @property
    def nbytes(self) -> int:
        """Bytes of its files, except the manifest."""
        return sum((self.path / name).stat().st_size for name in self.manifest.sha256)

    def verify(self) -> None:
        """Compares every file with its hash.

        Raises:
          YourError: one is missing, differs from the exported one, or is a link that leads out of the directory.
        """
        inside = self.path.resolve()
        for name, wanted in self.manifest.sha256.items():
            path = self.path / name
            try:
                found = sha256(path) if path.resolve().is_relative_to(inside) else ""
            except OSError as exc:
                raise YourError(f"{path} cannot be read ({exc.strerror}); export the checkpoint again.") from exc
            if found != wanted:
                raise YourError(f"{path} is not the file that was exported; export the checkpoint again.")

    def compiled(self, options: Options = NO_OPTIONS) -> Run:
        """Returns `predict(inputs) -> outputs`, run by the format's own runtime; uses `converter` of the options.

        Raises:
          YourError: the installed versions cannot load it.
        """
        try:
            return target(self.manifest.target, Options(converter=options.converter)).load(
                self.path, self.manifest.format
            )
        except KeyError as exc:
            raise YourError(f"{self.path} cannot be loaded: {MANIFEST} has no {exc.args[0]}.") from exc
        except ValueError as exc:
            raise YourError(f"{self.path} cannot be loaded: {exc}") from exc


def load(path: str | Path) -> Artifact:
    """Opens an exported program, whose files must be unchanged since the export.

    Raises:
      YourError: there is none, or it is damaged, or a newer trainband exported it.
    """
    directory = Path(path)
    try:
        data = read_regular(directory / MANIFEST, MOST_MANIFEST_BYTES)
    except OSError as exc:
        raise YourError(f"{directory} is not an exported model: {MANIFEST} cannot be read ({exc.strerror}).") from exc
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise YourError(f"{directory / MANIFEST} is not the manifest of an exported model: {exc}.") from exc
    if manifest.trainband_export > FORMAT_VERSION:
        raise YourError(
            f"{directory} was exported by trainband {manifest.trainband}, which is newer; upgrade this one."
        )
    if manifest.target not in TARGETS:
        raise YourError(f"{directory} is an export to {manifest.target[:50]!r}; the targets are {', '.join(TARGETS)}.")
    artifact = Artifact(directory, manifest)
    artifact.verify()
    return artifact


def write_manifest(
    directory: Path, program: InferenceProgram, name: str, written: dict[str, Any], difference: Mapping[str, float]
) -> Manifest:
    """Writes the manifest of a directory's files."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST)
    manifest = Manifest(
        trainband_export=FORMAT_VERSION,
        target=name,
        format=written,
        name=program.name,
        signature=program.signature,
        source=program.source,
        global_step=program.global_step,
        trainband=VERSION,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        sha256={path.relative_to(directory).as_posix(): sha256(path) for path in files},
        difference=dict(difference),
    )
    (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


def sha256(path: Path) -> str:
    """A file's hash, in hexadecimal."""
    with regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_in(file: str, place: str) -> bool:
    """Whether a file has this name, or is in the directory of this name."""
    return file == place or (PurePosixPath(place) in PurePosixPath(file).parents and place not in ("", "."))


def _check_spec(spec: TensorSpec) -> None:
    known = [length for length in spec.shape if isinstance(length, int)]
    symbols = [length for length in spec.shape if isinstance(length, str)]
    if len(spec.name) > 1000 or len(spec.dtype) > 40 or any(len(symbol) > 200 for symbol in symbols):
        raise ValueError(f"the signature has {spec.name[:50]!r}, which is not a tensor")
    if len(spec.shape) > MOST_DIMENSIONS or min(known, default=0) < 0 or math.prod(known) > MOST_ELEMENTS:
        raise ValueError(f"the shape of {spec.name!r} in the signature is larger than any tensor's")
