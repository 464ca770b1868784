"""ArtifactSource: an exported model, run by its format's own runtime, without any of the user's code."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jax

from trainband.errors import YourError
from trainband.export.artifact import Artifact, load
from trainband.model.inference import InferenceProgram
from trainband.serve.model import ServedModel
from trainband.serve.sources.base import OnVersion, SourceState, SourceStatus


class ArtifactSource:
    """A result of `trainband export`: one version.

    Args:
      path: the directory.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.status = SourceStatus(SourceState.FIXED, f"{self._path} is an exported model.")

    def open(self, name: str = "") -> ServedModel:
        artifact = load(self._path)
        manifest = artifact.manifest
        made_at = datetime.fromisoformat(manifest.made).timestamp()
        if manifest.target == "stablehlo":
            return ServedModel.of(_program(artifact), name, made_at)
        return ServedModel.of_run(
            artifact.compiled(),
            artifact.signature,
            name or manifest.name,
            number=manifest.global_step,
            source=str(self._path),
            made_at=made_at,
        )

    def run(self, on_version: OnVersion, stop: threading.Event) -> None:
        """Waits for the end: there are no other versions."""


def _program(artifact: Artifact) -> InferenceProgram:
    from trainband.export.targets import stablehlo

    try:
        exported, weights = stablehlo.read(artifact.path)
    except (KeyError, TypeError, ValueError) as exc:
        raise YourError(f"{artifact.path} cannot be loaded: {exc}") from exc

    def function(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        outputs: dict[str, jax.Array] = exported.call(dict(weights), dict(inputs))
        return outputs

    return InferenceProgram(
        function=function,
        weights=weights,
        signature=artifact.signature,
        name=artifact.manifest.name,
        example={},
        source=str(artifact.path),
        global_step=artifact.manifest.global_step,
    )
