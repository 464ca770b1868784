"""The tests that start processes do so through `programs`, which fails a test that leaves one behind."""

from __future__ import annotations

from tests.programs import ports as ports
from tests.programs import programs as programs
