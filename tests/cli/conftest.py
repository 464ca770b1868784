"""What tests of several commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def imports_a_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a command that imports `program.py` and makes settings for its own process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    yield
    sys.modules.pop("program", None)  # each test has one of its own
