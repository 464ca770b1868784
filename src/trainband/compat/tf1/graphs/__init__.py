"""A graph as it is recorded, and how it becomes a function."""

from __future__ import annotations
