"""What a script can record: arithmetic, arrays, networks, control flow, variables."""

from __future__ import annotations
