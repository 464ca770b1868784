"""The token that an inference server requires of its clients, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

TOKEN_FILE = "TRAINBAND_SERVE_TOKEN_FILE"


def resolve_token_file(given: Path | None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Returns the file with the token that clients must send; `None` if the server requires none.

    Args:
      given: on the command line, which takes precedence over the environment.
      environ: the environment to read; `os.environ` when `None`.
    """
    text = (os.environ if environ is None else environ).get(TOKEN_FILE, "")
    return given or (Path(text) if text else None)
