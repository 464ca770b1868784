"""Tests that start whole programs do it through `programs`, which fails a test that leaves one behind."""

from __future__ import annotations

from tests.machines import machines as machines
from tests.programs import programs as programs
