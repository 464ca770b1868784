"""`tf.keras`: small programs give the numbers that TensorFlow gives, and what Keras 2 could be told is understood."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compat_tf2.keras_programs import PROGRAMS

import trainband.compat.tf2 as tf

GOLDEN = json.loads((Path(__file__).parent / "data" / "keras_programs.json").read_text())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_program_gives_tensorflows_numbers(program: Callable[[Any], dict[str, Any]]) -> None:
    found = program(tf)
    for name, value in GOLDEN[program.__name__].items():
        if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], str)):
            assert found[name] == value
        else:
            np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5, err_msg=name)
