"""The Python of each format's converter, where this machine has one."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from bench.environments import ROOT

from trainband.cli.export import VARIABLES
from trainband.export.targets.base import Options


def options_for(target: str) -> Options:
    """Options with the converter of a format; skips the test, where there is none."""
    if target not in VARIABLES:
        return Options()
    if target == "litert" and importlib.util.find_spec("litert_converter") is not None:
        return Options(converter=Path(sys.executable))
    named = os.environ.get(VARIABLES[target])
    if named:
        return Options(converter=Path(named))
    made = ROOT / ".bench" / ("tensorflow" if target == "saved-model" else "litert") / "bin" / "python"
    if made.is_file():
        return Options(converter=made)
    pytest.skip(f"there is no converter for {target}: {VARIABLES[target]} names no Python, and {made} is not there")
