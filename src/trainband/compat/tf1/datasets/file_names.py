"""Names of files that match patterns."""

from __future__ import annotations

import glob
from typing import Any

import numpy as np

from trainband.compat.tf1.datasets.elements import Elements, boxed
from trainband.compat.tf1.graphs.errors import NotFoundError


def matching(patterns: Any) -> Elements:
    """The names of the files that match, in order.

    Raises:
      NotFoundError: there are none.
    """
    found = [name for one in np.ravel(patterns) for name in sorted(glob.glob(bytes(one).decode()))]  # noqa: PTH207 - of absolute patterns, too
    if not found:
        raise NotFoundError(
            None, None, f"No files matched pattern: {[bytes(one).decode() for one in np.ravel(patterns)]}"
        )
    return iter([(boxed(name.encode()),) for name in found])
