"""Artifact: a directory with an exported program, and `manifest.json`, which says what is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from trainband.errors import YourError
from trainband.export.targets import target
from trainband.export.targets.base import NO_OPTIONS, Options, Run
from trainband.model.inference import InferenceProgram
from trainband.model.signature import Signature
from trainband.version import VERSION

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` holds.

    Attributes:
      trainband_export: the version of this format.
      target: a name in `TARGETS`.
      format: what the target says of itself: versions, and which file is what.
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


@dataclass(frozen=True, slots=True)
class Artifact:
    """An exported program on the disk."""

    path: Path
    manifest: Manifest

    @property
    def signature(self) -> Signature:
        """Inputs and outputs."""
        return self.manifest.signature

    @property
    def nbytes(self) -> int:
        """Bytes of its files but the manifest."""
        return sum((self.path / name).stat().st_size for name in self.manifest.sha256)

    def verify(self) -> None:
        """Compares every file with its hash.

        Raises:
          YourError: one is missing or is not what was exported.
        """
        for name, wanted in self.manifest.sha256.items():
            path = self.path / name
            if not path.is_file() or sha256(path) != wanted:
                raise YourError(f"{path} is not the file that was exported; export the checkpoint again.")

    def compiled(self, options: Options = NO_OPTIONS) -> Run:
        """`predict(inputs) -> outputs`, by the format's own runtime; of the options, `converter` counts.

        Raises:
          YourError: it cannot be loaded by the versions that are here.
        """
        try:
            return target(self.manifest.target, Options(converter=options.converter)).load(
                self.path, self.manifest.format
            )
        except ValueError as exc:
            raise YourError(f"{self.path} cannot be loaded: {exc}") from exc


def load(path: str | Path) -> Artifact:
    """Opens an exported program, whose files must be those that were exported.

    Raises:
      YourError: there is none, or it is damaged, or of a newer trainband.
    """
    directory = Path(path)
    try:
        data = (directory / MANIFEST).read_bytes()
    except OSError as exc:
        raise YourError(f"{directory} is no exported model: {MANIFEST} cannot be read ({exc.strerror}).") from exc
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as exc:
        raise YourError(f"{directory / MANIFEST} is not one of an exported model: {exc}.") from exc
    if manifest.trainband_export > FORMAT_VERSION:
        raise YourError(
            f"{directory} was exported by trainband {manifest.trainband}, which is newer; upgrade this one."
        )
    artifact = Artifact(directory, manifest)
    artifact.verify()
    return artifact


def write_manifest(
    directory: Path, program: InferenceProgram, name: str, written: dict[str, Any], difference: Mapping[str, float]
) -> Manifest:
    """Writes the manifest of what lies in a directory."""
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
        sha256={str(path.relative_to(directory)): sha256(path) for path in files},
        difference=dict(difference),
    )
    (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


def sha256(path: Path) -> str:
    """A file's hash, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
