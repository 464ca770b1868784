"""LiveValues: summaries of current variables, read from the ps of a running job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from numpy.typing import NDArray

from trainband.cluster.credentials import Credentials
from trainband.cluster.identity import OBSERVER
from trainband.errors import YourError
from trainband.monitor.snapshot import JobSnapshot
from trainband.monitor.tensor_summary import TensorSummary, summary_of
from trainband.runtime.formatting import size
from trainband.wire.flight import FlightConnection
from trainband.wire.security.security import Security
from trainband.wire.transport import Timeouts

MOST_BYTES = 256 << 20
"""Bytes of a variable that may be read: a ps copies and sends its part while it trains."""
TIMEOUT_S = 10.0


class LiveValues:
    """Reads variables, one at a time, however many callers there are.

    Args:
      snapshot: returns the state of the job.
      credentials: of the job; called for each read.
    """

    def __init__(self, snapshot: Callable[[], JobSnapshot], credentials: Callable[[], Credentials]) -> None:
        self._snapshot = snapshot
        self._credentials = credentials
        self._reading = threading.Lock()

    def summary(self, name: str) -> TensorSummary:
        """Summarises the values of a variable. Thread-safe.

        Raises:
          YourError: the job has no such variable, it is too large to read from a running job, or it holds no numbers.
          PeerError: a ps that holds rows of it cannot be asked.
        """
        snapshot = self._snapshot()
        variable = next((one for one in snapshot.variables if one.name == name), None)
        if variable is None:
            raise YourError(f"the job has no variable {name!r}.")
        if variable.nbytes > MOST_BYTES:
            raise YourError(
                f"{name} has {size(variable.nbytes)}, but at most {size(MOST_BYTES)} are read from a running job. "
                "With --checkpoint-dir, values come from the newest checkpoint."
            )
        addresses = {ps.task: ps.address for ps in snapshot.ps}
        with self._reading:
            pieces = [self._read(addresses[ps], name) for ps in dict.fromkeys(one.ps for one in variable.slices)]

        def values() -> Iterator[NDArray[Any]]:
            yield from pieces

        try:
            return summary_of(name, snapshot.global_step, values)
        except (TypeError, ValueError) as exc:
            raise YourError(f"{name} does not hold numbers ({exc}).") from exc

    def _read(self, address: str, name: str) -> NDArray[Any]:
        """Returns the rows that a ps holds."""
        timeouts = Timeouts(connect_s=TIMEOUT_S, call_s=TIMEOUT_S)
        with closing(FlightConnection(address, timeouts, Security.of(self._credentials(), OBSERVER))) as connection:
            return connection.read(name, timeout_s=TIMEOUT_S)
