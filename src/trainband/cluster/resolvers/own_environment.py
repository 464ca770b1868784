"""The environment of this process, for those who pass it on."""

from __future__ import annotations

import os


def own_environment() -> dict[str, str]:
    """A copy of `os.environ`."""
    return dict(os.environ)
