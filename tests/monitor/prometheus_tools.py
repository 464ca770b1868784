"""promtool and prometheus, where they are installed (Debian's package `prometheus`)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def tool(name: str) -> str:
    """The path of one of them; skips the test where it is not here."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not here: `make platforms` installs it on Debian and Ubuntu")
    return path


def promtool(*arguments: str | Path, given: str = "") -> str:
    """What promtool says when it is content; fails with what it says otherwise."""
    done = subprocess.run(
        [tool("promtool"), *map(str, arguments)], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said
