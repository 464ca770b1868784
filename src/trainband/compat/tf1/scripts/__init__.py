"""What scripts use besides graphs: flags, lines for people, files, and data to begin with."""

from __future__ import annotations
