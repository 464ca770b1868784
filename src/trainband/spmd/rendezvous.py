"""The rendezvous of a job's workers: all find out that all are there, before JAX connects them.

JAX's own does not say for whom it waits, and ends the process when somebody does not come.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence

from trainband.cluster.address import Address
from trainband.errors import AddressInUse, DeadlineExceeded, Refused, UnknownHost
from trainband.runtime.waiting import Say, Waiting
from trainband.spmd.proof import ask_proof, prove

HELLO = "trainband worker "
GO = "go"
TAKEN = "taken"
WAITING = "waiting for "

PURPOSE = "rendezvous"
LOOK_S = 0.05
MESSAGE_S = 1.0
"""Between two messages of the chief to those who wait."""
KEEP_S = 30
"""Of silence on a connection, after which the kernel speaks."""
ANSWER_S = 5.0
"""For an answer, or a connection."""

RUNS = "check that it runs"
REACH = "check that it runs, and that its port can be reached from here"
ANOTHER = "check that no other program has that port"


def rendezvous(
    chief: Address, index: int, tasks: Sequence[str], start_s: float, say: Say, secret: bytes = b""
) -> dict[int, socket.socket]:
    """Returns when all the workers are there.

    Args:
      chief: where the first of them listens meanwhile; afterwards the port is free again.
      index: which of them this is.
      tasks: their names.
      start_s: seconds to wait.
      say: told for whom this waits.
      secret: the job's, which each proves to the other that it knows; empty where it has none.

    Returns:
      The connections between the chief and each other worker, by that one's index: of the chief all, of another one
      its own. Where they stay open, the chief sees each process end.

    Raises:
      AddressInUse: another process has the chief's port.
      AuthenticationError: the chief does not know the same secret.
      DeadlineExceeded: somebody did not come.
      Refused: another process has come under this one's name.
      UnknownHost: the chief's host name could not be resolved in all that time.
    """
    waiting = Waiting(start_s, say)
    if index == 0:
        return _await_all(chief, tasks, waiting, secret)
    return {index: _await_chief(chief, index, tasks, waiting, secret)}


def _await_all(chief: Address, tasks: Sequence[str], waiting: Waiting, secret: bytes) -> dict[int, socket.socket]:
    arrived: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(listening(chief, tasks[0]))
        server.settimeout(LOOK_S)
        told_at = 0.0
        while len(arrived) < len(tasks) - 1:
            with contextlib.suppress(TimeoutError):
                connection = stack.enter_context(server.accept()[0])
                number = _introduced(connection, len(tasks), secret)
                is_taken = number in arrived and not has_ended(arrived[number])
                if is_taken:
                    _send(connection, TAKEN)
                if is_taken or number is None:
                    connection.close()
                else:
                    _keep_alive(connection)
                    arrived[number] = connection
            for number in [number for number, one in arrived.items() if has_ended(one)]:
                arrived.pop(number).close()
            missing = ", ".join(task for i, task in enumerate(tasks) if i and i not in arrived)
            if missing:
                waiting.check(f"{missing} to come up", f"check that it runs, and that it can reach {chief}")
            if time.monotonic() - told_at >= MESSAGE_S:
                told_at = time.monotonic()
                for one in arrived.values():
                    _send(one, f"{WAITING}{missing}")
        server.close()  # whoever calls from now on wants what comes after the rendezvous
        for one in arrived.values():
            _send(one, GO)
        stack.pop_all()
    return arrived


def _await_chief(chief: Address, index: int, tasks: Sequence[str], waiting: Waiting, secret: bytes) -> socket.socket:
    where = f"{tasks[0]} at {chief}"
    while True:
        try:
            connection = socket.create_connection((chief.host, chief.port), timeout=ANSWER_S)
        except socket.gaierror as exc:
            # Where tasks come up one after the other, as pods of Kubernetes do, so do their names.
            unknown = f"the host name {chief.host!r} cannot be resolved ({exc.strerror})"
            try:
                waiting.check(
                    f"{where}: {unknown}", "check its spelling in the cluster, and that this machine can look it up"
                )
            except DeadlineExceeded as late:
                raise UnknownHost(str(late)) from None
            time.sleep(LOOK_S)
            continue
        except OSError:
            waiting.check(f"{where} to come up", REACH)
            time.sleep(LOOK_S)
            continue
        with contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            try:
                prove(connection, secret, PURPOSE, where)
            except OSError:
                waiting.check(f"{where} to answer as a worker of this job", ANOTHER)
                time.sleep(LOOK_S)
                continue
            _send(connection, f"{HELLO}{index}")
            answer = _receive(connection, f"{where} to answer as a worker of this job", waiting)
            if answer == GO:
                _keep_alive(connection)
                stack.pop_all()
                return connection
        if answer == TAKEN:
            raise Refused(f"{where} knows another process as {tasks[index]}: give each its own task index.")
        time.sleep(LOOK_S)  # it has gone, and may come back


def _receive(connection: socket.socket, where: str, waiting: Waiting) -> str:
    """The chief's last message; empty where it has gone without one. For whom it waits is said on."""
    connection.settimeout(LOOK_S)
    waiting_for, advice, data = where, ANOTHER, b""
    while True:
        waiting.check(waiting_for, advice)
        try:
            got = connection.recv(4096)
        except TimeoutError:
            continue
        except OSError:
            return ""
        if not got:
            return ""
        *lines, data = (data + got).split(b"\n")
        for message in (line.decode("utf-8", "replace") for line in lines):
            if message in (GO, TAKEN):
                return message
            if message.startswith(WAITING):
                waiting_for, advice = f"{message.removeprefix(WAITING)} to come up", RUNS


def listening_host(chief: Address) -> str:
    """Where the chief listens: its own address on the loopback interface, or any of the machine's."""
    if chief.is_loopback:
        return "127.0.0.1" if chief.host == "localhost" else chief.host
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def listening(chief: Address, name: str) -> socket.socket:
    """A socket that listens where the chief does.

    Raises:
      AddressInUse: another process has the port.
    """
    try:
        host = listening_host(chief)
        if host == "::":
            return socket.create_server((host, chief.port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server((host, chief.port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as exc:
        raise AddressInUse(
            f"{name} cannot listen on port {chief.port}, as the cluster says: {exc.strerror}. End the process that has "
            "it, or give the cluster another port."
        ) from exc


def _introduced(connection: socket.socket, count: int, secret: bytes) -> int | None:
    """Which worker has called; `None` if it is none."""
    if not ask_proof(connection, secret, PURPOSE):
        return None
    connection.settimeout(ANSWER_S)
    try:
        hello = connection.recv(64).decode("utf-8", "replace").strip()
    except OSError:
        return None
    number = hello.removeprefix(HELLO)
    if not hello.startswith(HELLO) or not number.isdigit() or not 0 < int(number) < count:
        return None
    return int(number)


def _keep_alive(connection: socket.socket) -> None:
    """Has the kernel speak now and then: nobody else does after the rendezvous, and what filters packets forgets it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_S)


def has_ended(connection: socket.socket) -> bool:
    """Whether the process at the other end has closed a connection, or has died."""
    try:
        connection.settimeout(0.0)
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _send(connection: socket.socket, message: str) -> None:
    connection.settimeout(ANSWER_S)
    with contextlib.suppress(OSError):  # it has gone; the next look tells
        connection.sendall(f"{message}\n".encode())
