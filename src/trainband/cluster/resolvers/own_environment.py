"""The environment of this process, for callers that pass it on."""

from __future__ import annotations

import os


def own_environment() -> dict[str, str]:
    """Returns a copy of `os.environ`."""
    return dict(os.environ)
