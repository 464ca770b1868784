"""The recorded graph, and how it becomes a function."""

from __future__ import annotations
