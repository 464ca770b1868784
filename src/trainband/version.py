"""The version of trainband, which pyproject.toml reads from here."""

from __future__ import annotations

VERSION = "0.1.0"
