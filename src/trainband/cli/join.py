"""`trainband run --join`: asks a running job for places for elastic workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeVar

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.cluster.address import Address
from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.errors import ClusterError, PeerError, ProtocolError, Refused
from trainband.job.statistics import PsStatus
from trainband.monitor.question import call, explained
from trainband.runtime.waiting import Say, Waiting, say_on_stderr
from trainband.wire.messages.calls import Vacancy
from trainband.wire.messages.codec import decode
from trainband.wire.network import Network
from trainband.wire.transport import Timeouts, Transport

Record = TypeVar("Record")

ADVICE = "Give --join the address of any ps of a running job"


def find_places(
    address: str,
    workers: int,
    *,
    environ: Mapping[str, str] | None = None,
    transport: Transport | None = None,
    timeouts: Timeouts | None = None,
    say: Say = say_on_stderr,
) -> list[Cluster]:
    """Asks the job of the ps at `address` for places, each with a worker name that the job has never used.

    Whichever ps is asked, the first of the job's ps that answers assigns the names, so that they are unique. All of
    this takes at most `Timeouts.connect_s`.

    Args:
      address: of any ps of the job, `host:port`.
      environ: where to look for the job's credentials; `os.environ` when `None`.
      transport: how to reach the ps; by default, as tasks do.
      say: is told every few seconds what this waits for.

    Returns:
      The cluster as each of these elastic workers sees it.

    Raises:
      ClusterError: the address is malformed, or the job's addresses are not valid on this machine.
      Unreachable: nothing listens there.
      DeadlineExceeded: there was no answer in time.
      ProtocolError: the answer is not from a ps of the job.
      Refused: the job has ended.
    """
    asked = Address.parse(address, "--join")
    if transport is None:
        credentials = credentials_for(address, environ)
        transport = Network(credentials=credentials, identity=Identity("worker"))
    search = _Search(transport, timeouts or Timeouts(), say)
    who = search.ask(address, "status", PsStatus)
    if who.ended:
        raise Refused(f"the job at {address} has ended; workers can no longer join it.")
    told = search.ask(address, "vacancy", Vacancy)
    spec = ClusterSpec(told.cluster, field=f"the cluster of the job at {address}, {{job}}")
    _check_loopback(spec, asked)
    home = spec.address(Task.parse(who.task))
    if Address.parse(home, who.task) != asked:
        context = f"the workers of the job at {address} reach {who.task} at {home}, but from here: "
        if search.ask(home, "status", PsStatus, context).incarnation != who.incarnation:
            raise ProtocolError(
                f"{context}another task answers there. Start this worker on a machine that reaches {who.task} there."
            )
    giver = _first_to_answer(search, spec, who.task)
    indices = [told.worker] if giver == home else []
    indices += [search.ask(giver, "vacancy", Vacancy).worker for _ in range(workers - len(indices))]
    return [Cluster(spec=spec, task=Task("worker", index), elastic=True) for index in indices]


def _first_to_answer(search: _Search, spec: ClusterSpec, known: str) -> str:
    """The address of the first ps that answers; `known` does.

    Raises:
      ProtocolError: another task answers at the address of a ps.
    """
    for ps in spec.ps:
        address = spec.address(ps)
        if str(ps) == known:
            return address
        try:
            found = search.ask(address, "status", PsStatus, share=0.5)
        except PeerError:
            continue  # it may be restarting; a worker that needs it reports that
        if found.task != str(ps):
            raise ProtocolError(
                f"{known} says that {ps} of its job is at {address}, but from here {found.task} of another job answers "
                f"there. Start this worker on a machine that reaches {ps} there."
            )
        return address
    return spec.address(Task.parse(known))


def _check_loopback(spec: ClusterSpec, asked: Address) -> None:
    """Refuses a job that only tasks on its own machine can reach, if that is another machine.

    Raises:
      ClusterError: the job was asked at a network address, and one of its ps has a loopback address.
    """
    if asked.is_loopback:
        return
    for ps in spec.ps:
        address = Address.parse(spec.address(ps), str(ps))
        if address.is_loopback:
            raise ClusterError(
                f"this job can be joined only from its own machine, because its {ps} is at {spec.address(ps)}. Join it "
                f"there with --join {spec.address(ps)}, or start it with network addresses: trainband run --host "
                f"{asked.host}."
            )


class _Search:
    """Questions to ps that share one deadline."""

    def __init__(self, transport: Transport, timeouts: Timeouts, say: Say) -> None:
        self._transport = transport
        self._timeouts = timeouts
        self._deadline = time.monotonic() + timeouts.connect_s
        self._waiting = Waiting(None, say)

    def ask(self, address: str, action: str, kind: type[Record], context: str = "", *, share: float = 1.0) -> Record:
        """Asks one question; errors begin with `context` and explain what they mean for joining.

        Args:
          share: of the remaining time that the answer may take.
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
        return max(0.01, self._deadline - time.monotonic())
