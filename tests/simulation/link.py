"""A simulated worker's way to one shard, as `trainband.ps.link` and the parts of the client that use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.simulation.letters import Letter, Timing
from tests.simulation.network import Network
from tests.simulation.process import Future, Process
from tests.simulation.threads import Pipe
from trainband.errors import Refused, StreamClosed
from trainband.wire import messages as m

JOIN_AGAIN = (m.MOVED, m.STRANGER)
"""Are in refusals after which a worker looks for the shard anew."""


class Link:
    """The way to whichever ps holds one shard."""

    def __init__(self, process: Process, network: Network, shard: int, places: Sequence[int], timing: Timing) -> None:
        """`places`: the ps that may hold it, its own first."""
        self.shard = shard
        self.places = tuple(places)
        self.at = 0
        self.worker = -1
        self.life = ""
        self.epoch = 0
        self.request: Any = None
        """What was sent last, to be sent again if the stream breaks off."""
        self.sequence = 0
        """Of the push that was sent last; 0 if that was no push."""
        self._process = process
        self._network = network
        self._timing = timing
        self._stream: Pipe | None = None

    @property
    def ps(self) -> int:
        """The number of the ps that this worker speaks with."""
        return self.places[self.at]

    def call(self, action: str, body: Any = None, timeout_s: float = 0.0) -> Future[Any]:
        """One try of a control call."""
        letter = Letter(self._process.name, self._process.incarnation, self.worker, body)
        timeout_s = timeout_s or self._timing.call_s
        return self._network.call(self._process, f"ps:{self.ps}", self.shard, action, letter, timeout_s)

    async def open(self) -> None:
        """Opens the stream. Raises `PeerError`."""
        end = await self._network.open_stream(self._process, f"ps:{self.ps}", self.shard, self._timing.call_s)
        self._stream = Pipe(end)
        self._stream.send(m.Open(self.worker, self._process.incarnation, self.shard))

    def close(self) -> None:
        """Gives up the stream, if there is one."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def move(self) -> None:
        """Turns to the other ps that may hold the shard."""
        self.at = (self.at + 1) % len(self.places)
        self.close()

    def send(self, frame: Any) -> None:
        """Raises `StreamClosed`."""
        self.request = frame
        self.sequence = frame.sequence if isinstance(frame, m.Push) else 0
        if self._stream is None:
            raise StreamClosed("no stream")
        self._stream.send(frame)

    async def receive(self) -> m.Params | None:
        """The next answer; `None` where it takes long.

        Raises:
          StreamClosed: the stream has ended, or the shard is to be looked for.
          Refused: the ps refuses this worker.
        """
        if self._stream is None:
            raise StreamClosed("no stream")
        frame = await self._stream.receive(self._timing.heartbeat_s)
        if isinstance(frame, m.Failure):
            if any(words in frame.message for words in JOIN_AGAIN):
                raise StreamClosed(frame.message)
            raise Refused(frame.message)
        assert frame is None or isinstance(frame, m.Params)
        return frame
