"""The golden values as arrays; `make_golden.py` has the recipe that makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> dict[str, Any]:
    """What TensorFlow gave, by name."""
    stored = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return {key: np.array(value["values"]).reshape(value["shape"]) for key, value in stored.items()}


def assert_close(mine: dict[str, Any], name: str, tolerance: float = 1e-4) -> None:
    """Fails where a value of a file is missing, of another shape, or farther away than the tolerance."""
    assert_close_to(mine, golden(name), tolerance)


def assert_close_to(mine: dict[str, Any], wanted: dict[str, Any], tolerance: float) -> None:
    """Fails where a value is missing, of another shape, or farther away than the tolerance."""
    assert sorted(mine) == sorted(wanted)
    for key, value in wanted.items():
        assert np.shape(mine[key]) == value.shape, key
        np.testing.assert_allclose(mine[key], value, rtol=tolerance, atol=tolerance, err_msg=key)
