"""`override`: Python's own from 3.12 on."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 12):
    from typing import override as override
else:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Method = TypeVar("Method", bound=Callable[..., Any])

    def override(method: Method, /) -> Method:
        """Marks a method that overrides one of a base class."""
        return method
