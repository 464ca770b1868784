"""Errors that a restart would repeat end a task with an exit code of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainband import Trainer
from trainband.errors import ClusterError, DataError, Unreachable
from trainband.runtime.input_errors import INPUT_ERROR, would_repeat
from trainband.strategies import OneDevice

THREE, FOUR = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)


def trained(batches: Any) -> None:
    Trainer(
        init=lambda _: {"w": jnp.ones(3)},
        loss=lambda params, batch: (batch @ params["w"]).mean(),
        optimizer=optax.sgd(0.1),
        strategy=OneDevice("cpu"),
        console=False,
        say=lambda _: None,
    ).fit(batches, 3)


@pytest.mark.parametrize(
    "batches", [[FOUR], [THREE, FOUR], [], [np.array([2**40])]], ids=["loss", "later", "none", "ids"]
)
def test_what_is_wrong_with_the_input_would_repeat(batches: Any) -> None:
    with pytest.raises((DataError, TypeError)) as caught:
        trained(batches)
    assert would_repeat(caught.value)


def broken() -> Any:
    yield THREE
    raise ValueError("half a file")


def test_what_may_go_well_the_next_time_would_not() -> None:
    with pytest.raises(ValueError, match="half a file") as caught:
        trained(broken())
    assert not any(map(would_repeat, (caught.value, Unreachable(""), ClusterError(""), OSError(), MemoryError())))


@pytest.mark.parametrize(
    ("before", "error", "code"),
    [
        ("cluster.resolve()", "errors.DataError('x')", INPUT_ERROR),
        ("cluster.resolve()", "OSError('x')", 1),
        ("cluster.resolve(); import sys; sys.ps1 = '>>> '", "errors.DataError('x')", 1),
        ("", "errors.DataError('x')", INPUT_ERROR),
        ("import os; del os.environ['TF_CONFIG']", "errors.DataError('x')", 1),
    ],
    ids=["input", "other", "interactive", "before it asks for the cluster", "no task"],
)
def test_the_exit_code_of_a_task(before: str, error: str, code: int) -> None:
    config = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    lines = [before, "from trainband import errors", f"raise {error}"]
    if "cluster" in before:
        lines.insert(0, "from trainband import cluster")
    script = "\n".join(lines)
    environ = {**os.environ, "TF_CONFIG": json.dumps(config)}
    done = subprocess.run(
        (sys.executable, "-c", script), env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.rstrip().endswith("Error: x")
