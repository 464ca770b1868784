"""The version of trainband, which pyproject.toml reads from here, and the build that runs."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

VERSION = "0.1.0"

_PARTS = ("model", "ps", "spmd", "strategies", "wire")
"""The folders whose code must fit together on all tasks of a job."""


@cache
def build() -> str:
    """The version and a digest of the code that tasks must have in common, such as `0.1.0+3f2a9c1b`.

    Between two releases, checkouts of one version differ. The digest takes 17 ms, once in a process.
    """
    digest = hashlib.blake2b(digest_size=4)
    for part in _PARTS:
        for path in sorted((Path(__file__).parent / part).rglob("*.py")):
            digest.update(path.read_bytes())
    return f"{VERSION}+{digest.hexdigest()}"


def of_other_code(task: str, runs: str, own: str) -> str:
    """Returns a warning about a task that runs another build than the task `own`, or an empty string.

    Args:
      task: the other task.
      runs: its `build()`; empty, or without a digest if it reports only a version.
      own: this task.
    """
    if "+" not in runs or runs == build():
        return ""
    return (
        f"WARNING: {task} runs trainband {runs}, and {own} runs {build()}: the code of the two differs. Install the "
        "same trainband on all tasks"
    )
