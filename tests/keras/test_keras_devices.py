"""`fit` on four devices of one process is `fit` on one; a script has them, as JAX must be told before it starts."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
Found = Callable[[str], Any]
NAMES = ("Mirrored", "central", "tensor", "fsdp")
TOLERANCE = 1e-5
"""Of weights of a size about 1, after 8 updates in float32."""

pytestmark = pytest.mark.limit(300)  # the script computes for half a minute with a core of its own


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What a model comes to, by strategy."""

    @functools.cache
    def of(model: str) -> Any:
        out = tmp_path_factory.mktemp("devices") / "found.json"
        environ = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
        quiet = "ignore:__array__ implementation:DeprecationWarning"
        command = (sys.executable, "-W", "error", "-W", quiet, "-m", "tests.keras.several_devices", model, str(out))
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(out.read_text(encoding="utf-8"))

    return of


MODELS = [pytest.param("dense", marks=pytest.mark.slow), "normal"]
"""Each with a last batch that the devices do not divide; the second changes more than its variables in a step."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_as_on_one_device(found: Found, model: str, name: str) -> None:
    expected, got = found(model)["OneDevice"], found(model)[name]
    assert np.ptp(expected["weights"]) > 0.1
    for part in ("weights", "optimizer"):
        np.testing.assert_allclose(got[part], expected[part], rtol=TOLERANCE, atol=TOLERANCE, err_msg=part)
    assert list(got["history"]) == list(expected["history"])
    for key, values in expected["history"].items():
        np.testing.assert_allclose(got["history"][key], values, rtol=1e-4, err_msg=key)
    for part in ("evaluated", "predicted"):
        np.testing.assert_allclose(got[part], expected[part], rtol=1e-4, err_msg=part)


@pytest.mark.parametrize("model", MODELS)
def test_an_evaluation_uses_all_devices(found: Found, model: str) -> None:
    assert {name: found(model)[name]["devices"] for name in ("OneDevice", "Mirrored", "central", "tensor")} == {
        "OneDevice": 1,
        "Mirrored": 4,
        "central": 4,
        "tensor": 4,
    }
