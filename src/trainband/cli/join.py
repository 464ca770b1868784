"""Asking a job that runs for places for workers that stand in no cluster spec: `trainband run --join`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeVar

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.cluster.address import Address
from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.errors import (
    ClusterError,
    PeerError,
    ProtocolError,
    Refused,
)
from trainband.monitor.question import call, explained
from trainband.ps.statistics import PsStatus
from trainband.runtime import Clock
from trainband.runtime.waiting import Say, Waiting, say_on_stderr
from trainband.wire.codec import decode
from trainband.wire.messages import Vacancy
from trainband.wire.network import Network
from trainband.wire.transport import Timeouts, Transport

Record = TypeVar("Record")

ADVICE = "Give --join the address of any ps of a job that runs"


def find_places(
    address: str,
    workers: int,
    *,
    environ: Mapping[str, str] | None = None,
    transport: Transport | None = None,
    timeouts: Timeouts | None = None,
    say: Say = say_on_stderr,
    clock: Clock = time.monotonic,
) -> list[Cluster]:
    """Asks the job that the ps at `address` serves for places, each with the name of a worker that it has never had.

    Whichever ps is asked, the first one that answers gives the names, so that no two workers get the same one. All of
    it together takes at most `Timeouts.connect_s`.

    Args:
      address: of any ps of the job, `host:port`.
      workers: how many places.
      environ: where to look for the job's credentials; `os.environ` when `None`.
      transport: how to reach the ps; the default is what tasks use.
      say: is told, every few seconds, for whom this waits.

    Returns:
      The cluster as each of these workers sees it, as a guest.

    Raises:
      ClusterError: the address is malformed, or the job's addresses mean nothing on this machine.
      Unreachable: nobody listens there.
      DeadlineExceeded: somebody does, but gave no answer.
      ProtocolError: somebody does, but is no ps of such a job.
      Refused: the job has ended.
    """
    asked = Address.parse(address, "--join")
    if transport is None:
        credentials = credentials_for(address, environ)
        transport = Network(credentials=credentials, identity=Identity("worker"))
    search = _Search(transport, timeouts or Timeouts(), say, clock)
    who = search.ask(address, "status", PsStatus)
    if who.ended:
        raise Refused(f"the job at {address} has ended; nobody can join it any more.")
    told = search.ask(address, "vacancy", Vacancy)
    spec = ClusterSpec(told.cluster, field=f"the cluster of the job at {address}, {{job}}")
    _check_loopback(spec, asked)
    home = spec.address(Task.parse(who.task))
    if Address.parse(home, who.task) != asked:
        context = f"{who.task} of the job at {address} is at {home} for its workers, but from here: "
        if search.ask(home, "status", PsStatus, context).incarnation != who.incarnation:
            raise ProtocolError(
                f"{context}another task answers there. Start this worker where {home} leads to {who.task}."
            )
    giver = _first_to_answer(search, spec, who.task)
    indices = [told.worker] if giver == home else []
    indices += [search.ask(giver, "vacancy", Vacancy).worker for _ in range(workers - len(indices))]
    return [Cluster(spec=spec, task=Task("worker", index), guest=True) for index in indices]


def _first_to_answer(search: _Search, spec: ClusterSpec, known: str) -> str:
    """The address of the first ps that answers; `known` is one that does.

    Raises:
      ProtocolError: another task is at the address of one.
    """
    for ps in spec.ps:
        address = spec.address(ps)
        if str(ps) == known:
            return address
        try:
            found = search.ask(address, "status", PsStatus, share=0.5)
        except PeerError:
            continue  # it may be on its way back; a worker that needs it says so
        if found.task != str(ps):
            raise ProtocolError(
                f"{known} says that {ps} of its job is at {address}, but from here {found.task} of another job answers "
                f"there. Start this worker where {address} leads to {ps}."
            )
        return address
    return spec.address(Task.parse(known))


def _check_loopback(spec: ClusterSpec, asked: Address) -> None:
    """Refuses a job that only its own machine reaches, where that is another one.

    Raises:
      ClusterError: the job was asked at an address of the network, and a ps of it is at one of the loopback interface.
    """
    if asked.is_loopback:
        return
    for ps in spec.ps:
        address = Address.parse(spec.address(ps), str(ps))
        if address.is_loopback:
            raise ClusterError(
                f"this job can be joined from its own machine only, because its {ps} is at {spec.address(ps)}. Join it "
                f"there, with --join {spec.address(ps)}, or start it with addresses of the network, such as by "
                f"trainband run --host {asked.host}."
            )


class _Search:
    """Questions to ps, all of them together with one deadline."""

    def __init__(self, transport: Transport, timeouts: Timeouts, say: Say, clock: Clock) -> None:
        self._transport = transport
        self._timeouts = timeouts
        self._clock = clock
        self._deadline = clock() + timeouts.connect_s
        self._waiting = Waiting(None, say, clock)

    def ask(self, address: str, action: str, kind: type[Record], context: str = "", *, share: float = 1.0) -> Record:
        """One question; errors say what they mean for joining, behind `context`.

        Args:
          share: of the time that is left, which the answer may take.
        """
        connection = self._transport.connect(address, self._timeouts)
        waited_for = f"{address} to answer"
        try:
            answer = call(connection, action, share * self._left_s(), lambda: self._waiting.check(waited_for, ""))
            return decode(answer, kind, address)
        except PeerError as exc:
            raise explained(
                exc, address, ADVICE, waited_s=self._timeouts.connect_s, left_s=self._left_s(), context=context
            ) from None
        finally:
            connection.close()

    def _left_s(self) -> float:
        return max(0.01, self._deadline - self._clock())
