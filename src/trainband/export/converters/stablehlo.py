"""StableHLO for a program that reads an older version than JAX writes."""

from __future__ import annotations

from typing import Any

from jax.extend.mlir.dialects import stablehlo

from trainband.errors import ModelError


def portable(exported: Any, version: str) -> bytes:
    """Serialises an exported function as a portable artifact of a StableHLO version.

    Raises:
      ModelError: that version lacks an operation.
    """
    try:
        oldest = stablehlo.get_smaller_version(version, stablehlo.get_current_version())
        text = stablehlo.deserialize_portable_artifact_str(exported.mlir_module_serialized)
        artifact: bytes = stablehlo.serialize_portable_artifact_str(text, oldest)
    except ValueError as exc:
        raise ModelError(f"StableHLO {version}, which the converter reads, lacks an operation: {exc}") from exc
    return artifact
