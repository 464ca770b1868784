"""A company's web proxy in the environment, which must not come between the tasks of a job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")


@contextmanager
def without_proxies() -> Iterator[None]:
    """Context in which the environment has no proxy, for gRPC channels that have no option for this.

    gRPC reads these variables only when a channel is created. trainband's own channels use an option instead.
    """
    held = {name: value for name, value in os.environ.items() if name.lower() in _PROXIES}
    for name in held:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(held)
