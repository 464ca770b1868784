"""What scripts use besides graphs: flags, logging, files, and example data."""

from __future__ import annotations
