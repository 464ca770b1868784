"""Weights as a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file


def write_weights(path: Path, weights: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Writes arrays by name; `metadata` is a dict of strings that the file keeps with them."""
    path.touch()
    mode = path.stat().st_mode  # keeps the user's permissions: the library removes those of others
    save_file({name: np.asarray(weight, order="C") for name, weight in weights.items()}, path, dict(metadata or {}))
    path.chmod(mode)
