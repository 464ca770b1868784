"""Operations of TensorFlow 2 alone: values, dtypes and errors, beside those that TensorFlow gave."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.compat_tf2.make_version2 import HERE, arrays, evaluated, expressions

import trainband.compat.tf2 as tf

GOLDEN = json.loads((HERE / "data" / "version2.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_gives_what_tensorflow_gives(expression: str) -> None:
    compare(evaluated(expression, arrays(tf)), GOLDEN[expression])


def compare(found: Any, wanted: Any) -> None:
    """Demands the same structure, dtypes and errors, and close values."""
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], dict | list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            compare(one, other)
    elif isinstance(wanted, dict) and "dtype" in wanted:
        assert isinstance(found, dict), found
        assert found.get("dtype") == wanted["dtype"], found
        np.testing.assert_allclose(np.asarray(found["value"]), np.asarray(wanted["value"]), rtol=2e-4, atol=2e-5)
        assert np.shape(found["value"]) == np.shape(wanted["value"])
    elif isinstance(wanted, list):
        np.testing.assert_allclose(found, wanted, rtol=2e-4)
    else:
        assert found == wanted
