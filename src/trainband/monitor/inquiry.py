"""Inquiry: asks a ps for its status."""

from __future__ import annotations

from typing import TypeVar

from trainband.cluster.address import Address
from trainband.cluster.credentials import Credentials
from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.errors import PeerError
from trainband.job.statistics import PsStatus
from trainband.monitor.question import call, explained
from trainband.wire.messages.codec import decode, encode
from trainband.wire.messages.recording import RecordingOrder, Recordings, RecordSteps
from trainband.wire.network import Network
from trainband.wire.transport import Timeouts

ADVICE = "Give the address of a ps of a running job"

Answer = TypeVar("Answer")


class Inquiry:
    """Asks one ps, over one connection, any number of times.

    Args:
      address: of the ps, `host:port`.
      timeout_s: seconds to wait for each answer.
      advice: what to do if no ps answers; begins "Give ...", without a full stop.
      credentials: of the job; if `None`, those of the environment or of this user's own job at the address.
    """

    def __init__(
        self, address: str, timeout_s: float, *, advice: str = ADVICE, credentials: Credentials | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._advice = advice
        Address.parse(address, "HOST:PORT")
        network = Network(credentials=credentials_for(address) if credentials is None else credentials)
        self._connection = network.connect(address, Timeouts(connect_s=timeout_s, call_s=timeout_s))

    def ask(self) -> PsStatus:
        """Returns the status of the ps.

        Raises:
          PeerError: nothing answers there in time, or it is not a ps.
        """
        return self._ask("status", PsStatus)

    def record_steps(self, steps: int) -> RecordingOrder:
        """Orders a recording of the next steps of the job's workers; returns the order, perhaps an earlier one.

        Raises:
          PeerError: as for `ask`, or no worker is training.
        """
        return self._ask("record_steps", RecordingOrder, encode(RecordSteps(steps)))

    def recordings(self) -> Recordings:
        """Returns the recordings of the last order so far. Raises `PeerError` as `ask` does."""
        return self._ask("recordings", Recordings)

    def _ask(self, action: str, kind: type[Answer], body: bytes = b"") -> Answer:
        address = self._connection.address
        try:
            return decode(call(self._connection, action, self._timeout_s, body=body), kind, address)
        except PeerError as exc:
            raise explained(
                exc, address, self._advice, waited_s=self._timeout_s, left_s=self._timeout_s, context=""
            ) from None

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def __enter__(self) -> Inquiry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
