"""Which task answers at an address."""

from __future__ import annotations

import time

from trainband.cli.doctor.finding import Finding, missing, ok, problem
from trainband.cluster.address import Address
from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.errors import (
    AuthenticationError,
    ClusterError,
    DeadlineExceeded,
    NoTaskListens,
    PeerError,
    ProtocolError,
    UnknownHost,
    Unreachable,
)
from trainband.job.statistics import PsStatus
from trainband.monitor.question import call, explained
from trainband.wire.messages.codec import decode
from trainband.wire.network import Network
from trainband.wire.transport import Timeouts


def peer(address: str, timeout_s: float) -> Finding:
    """Asks the ps at an address for its status.

    Raises:
      ClusterError: the address is malformed.
    """
    Address.parse(address, "HOST:PORT")
    deadline = time.monotonic() + timeout_s

    def check() -> None:
        if time.monotonic() > deadline + 1.0:  # looking up a name has no deadline of its own
            raise DeadlineExceeded(f"{address} gave no answer in {timeout_s:g} s.")

    try:
        network = Network(credentials=credentials_for(address))
        connection = network.connect(address, Timeouts(connect_s=timeout_s, call_s=timeout_s))
    except ClusterError as exc:  # a machine may have only the certificates of its tasks
        return missing(address, "not asked: no usable credentials or transport", str(exc))
    try:
        status = decode(call(connection, "status", timeout_s, check), PsStatus, address)
        began = time.monotonic()
        call(connection, "status", timeout_s, check)
        took_ms = 1000 * (time.monotonic() - began)
    except PeerError as exc:
        left_s = max(0.1, deadline - time.monotonic())
        return unanswered(
            address, explained(exc, address, "", waited_s=timeout_s, left_s=left_s, context=""), timeout_s
        )
    finally:
        connection.close()
    workers = len(status.workers)
    text = (
        f"{status.task} of a job {'that has ended' if status.ended else f'at step {status.version:,}'}, with {workers} "
        f"worker{'s' * (workers != 1)}; it answers in {took_ms:.1f} ms"
    )
    return ok(address, text, task=status.task, global_step=status.version, workers=workers, milliseconds=took_ms)


def unanswered(address: str, exc: PeerError, timeout_s: float) -> Finding:
    """The finding for a failed question."""
    match exc:
        case UnknownHost():
            text, advice = "the host name cannot be resolved", "Check its spelling and this machine's name resolution."
        case NoTaskListens():
            text = "something that is not a trainband task listens there"
            advice = "Give the address of a ps, and check which program has the port (`ss -ltnp` on that machine)."
        case Unreachable():
            text = "nothing listens there"
            advice = "Start the ps first (workers do not listen), and check whether a firewall refuses the port."
        case DeadlineExceeded():
            text = f"no answer in {timeout_s:g} s"
            advice = "Check whether that task is stopped, or a firewall drops packets to the port."
        case AuthenticationError():
            text, advice = "a job with other credentials, or not a trainband task", str(exc)
        case ProtocolError():
            text = "something that is not a trainband ps answers there"
            advice = "Give the address of a ps. The first worker of a job without ps cannot be asked."
        case _:
            text, advice = str(exc), "Run `trainband status` for more."
    return problem(address, text, advice, stops_jobs=True, error=type(exc).__name__)
