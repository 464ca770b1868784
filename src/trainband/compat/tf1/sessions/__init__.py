"""Running a graph: in this process, or as a task of a job with parameter servers."""

from __future__ import annotations
