"""The rendezvous of a job's workers: each learns that all are up before JAX connects them.

JAX's own does not report which workers it waits for, and ends the process if one does not come up.
"""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import socket
from collections.abc import Iterator, Sequence

from trainband.cluster.address import Address
from trainband.errors import AddressInUse, DeadlineExceeded, Refused, UnknownHost
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.formatting import MOST_OF_A_LINE, one_line
from trainband.runtime.waiting import Say, Waiting
from trainband.spmd.proof import RENDEZVOUS, Peer, Proof
from trainband.spmd.sockets import SYSTEM_SOCKETS, Listener, Socket, Sockets
from trainband.spmd.strangers import Strangers

HELLO = "trainband worker "
GO = "go"
TAKEN = "taken"
WAITING = "waiting for "
GAVE_UP = "gave up: "

LOOK_S = 0.05
MESSAGE_S = 1.0
"""Between two messages of the chief to waiting workers."""
SILENT_S = 3 * MESSAGE_S
"""Without a message, after which a worker waits for the chief itself."""
KEEP_S = 30
"""Seconds of silence on a connection after which the kernel probes it."""
ANSWER_S = 5.0
"""Deadline for an answer, or a connection."""
_NO_PROOF = Proof()

RUNS = "check that it runs"
REACH = "check that it runs, and that its port can be reached from here"
ANOTHER = "check that no other program has that port"


def rendezvous(
    chief: Address,
    index: int,
    tasks: Sequence[str],
    start_s: float,
    say: Say,
    proof: Proof = _NO_PROOF,
    runtime: Runtime = SYSTEM,
    sockets: Sockets = SYSTEM_SOCKETS,
) -> dict[int, Socket]:
    """Returns when all workers are up.

    Args:
      chief: where the first worker listens meanwhile; afterwards the port is free again.
      index: of this worker.
      tasks: names of the workers.
      start_s: seconds to wait.
      say: told which workers this waits for.
      proof: by which each end proves that it belongs to the job.
      runtime, sockets: threads, time and network.

    Returns:
      The connections between the chief and the other workers, by their index: all on the chief, elsewhere this
      worker's own. While they stay open, the chief notices when a process ends.

    Raises:
      AddressInUse: another process has the chief's port.
      AuthenticationError: the chief does not belong to the job, or rejects this task.
      DeadlineExceeded: a worker did not come up.
      Refused: another process has used this one's name.
      UnknownHost: the chief's host name could not be resolved in time.
    """
    waiting = Waiting(start_s, say, runtime.clock)
    if index == 0:
        return _await_all(chief, tasks, waiting, proof, runtime, sockets)
    return {index: _await_chief(chief, index, tasks, waiting, proof, runtime, sockets)}


def _await_all(
    chief: Address, tasks: Sequence[str], waiting: Waiting, proof: Proof, runtime: Runtime, sockets: Sockets
) -> dict[int, Socket]:
    arrived: dict[int, Socket] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(listening(chief, tasks[0], sockets))
        server.settimeout(LOOK_S)
        callers = stack.enter_context(contextlib.closing(_Callers(tasks, proof, runtime)))
        told_at = -math.inf
        while len(arrived) < len(tasks) - 1:
            with contextlib.suppress(TimeoutError):
                callers.ask(server.accept()[0])
            for number, connection in callers.introduced():
                stack.enter_context(connection)
                is_taken = number in arrived and not has_ended(arrived[number])
                if is_taken:
                    _send(connection, TAKEN)
                    connection.close()
                else:
                    _keep_alive(connection)
                    arrived[number] = connection
            for number in [number for number, one in arrived.items() if has_ended(one)]:
                arrived.pop(number).close()
            missing = ", ".join(task for i, task in enumerate(tasks) if i and i not in arrived)
            if missing:
                try:
                    waiting.check(f"{missing} to come up", f"check that it runs, and that it can reach {chief}")
                except DeadlineExceeded as exc:
                    for one in arrived.values():
                        _send(one, f"{GAVE_UP}{exc}")
                    raise
            if runtime.clock() - told_at >= MESSAGE_S:
                told_at = runtime.clock()
                for one in arrived.values():
                    _send(one, f"{WAITING}{missing}")
        server.close()  # later callers want what comes after the rendezvous
        for one in arrived.values():
            _send(one, GO)
        callers.close()
        stack.pop_all()
    return arrived


def _await_chief(
    chief: Address,
    index: int,
    tasks: Sequence[str],
    waiting: Waiting,
    proof: Proof,
    runtime: Runtime,
    sockets: Sockets,
) -> Socket:
    where = f"{tasks[0]} at {chief}"
    to_come_up, advice = f"{where} to come up", REACH
    while True:
        try:
            connection = sockets.connect(chief.host, chief.port, ANSWER_S)
        except socket.gaierror as exc:
            # If tasks come up one after the other, like Kubernetes pods, their names do too.
            unknown = f"the host name {chief.host!r} cannot be resolved ({exc.strerror})"
            try:
                waiting.check(
                    f"{where}: {unknown}", "check its spelling in the cluster, and that this machine can look it up"
                )
            except DeadlineExceeded as late:
                raise UnknownHost(str(late)) from None
            runtime.sleep(LOOK_S)
            continue
        except OSError:
            waiting.check(to_come_up, advice)
            runtime.sleep(LOOK_S)
            continue
        with contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            try:
                proof.present(connection, RENDEZVOUS, tasks[0], where)
            except OSError:
                waiting.check(f"{where} to answer as a worker of this job", ANOTHER)
                runtime.sleep(LOOK_S)
                continue
            _send(connection, f"{HELLO}{index}")
            answer = _receive(connection, f"{where} to answer as a worker of this job", waiting)
            if answer == GO:
                _keep_alive(connection)
                stack.pop_all()
                return connection
        if answer.startswith(GAVE_UP):
            why = one_line(answer.removeprefix(GAVE_UP), MOST_OF_A_LINE).rstrip(".")
            to_come_up, advice = f"{where} to come up again, which gave up: {why}", "then start the job again"
        if answer == TAKEN:
            raise Refused(f"{where} knows another process as {tasks[index]}: give each process its own task index.")
        runtime.sleep(LOOK_S)  # it has gone, and may come back


def _receive(connection: Socket, where: str, waiting: Waiting) -> str:
    """Returns the chief's last message, or nothing if it has gone; reports which workers the chief waits for."""
    connection.settimeout(LOOK_S)
    heard_at, waiting_for, advice, data = -math.inf, where, ANOTHER, b""
    while True:
        if waiting.waited_s - heard_at < SILENT_S:
            waiting.check(waiting_for, advice)
        else:
            waiting.check(where, ANOTHER)
        try:
            got = connection.recv(4096)
        except TimeoutError:
            continue
        except OSError:
            return ""
        if not got:
            return ""
        heard_at = waiting.waited_s
        *lines, data = (data + got).split(b"\n")
        for message in (line.decode("utf-8", "replace") for line in lines):
            if message in (GO, TAKEN) or message.startswith(GAVE_UP):
                return message
            if message.startswith(WAITING):
                awaited = one_line(message.removeprefix(WAITING), MOST_OF_A_LINE)
                waiting_for, advice = f"{awaited} to come up", RUNS


def listening_host(chief: Address) -> str:
    """Returns where the chief listens: its own address on the loopback interface, or any of the machine's."""
    if chief.is_loopback:
        return "127.0.0.1" if chief.host == "localhost" else chief.host
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def listening(chief: Address, name: str, sockets: Sockets) -> Listener:
    """Returns a socket that listens where the chief does.

    Raises:
      AddressInUse: another process has the port.
    """
    try:
        return sockets.listen(listening_host(chief), chief.port)
    except OSError as exc:
        raise AddressInUse(
            f"{name} cannot listen on its port {chief.port}: {exc.strerror}. End the process that has it, or give the "
            "cluster another port."
        ) from exc


class _Callers:
    """Callers of the chief that are being identified, each in its own thread: a silent one must not keep the others
    waiting.

    Args:
      tasks: the names of the workers.
      proof: what each must give.
      runtime: threads.
    """

    def __init__(self, tasks: Sequence[str], proof: Proof, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._proof = proof
        self._strangers = Strangers(runtime=runtime)
        self._introduced: queue.SimpleQueue[tuple[int, Socket]] = queue.SimpleQueue()
        self._closed = False

    def ask(self, caller: Socket) -> None:
        """Identifies a caller."""
        self._strangers.add(caller)
        self._runtime.thread(functools.partial(self._ask, caller), "trainband-rendezvous").start()

    def introduced(self) -> Iterator[tuple[int, Socket]]:
        """Yields callers that have proved which worker they are since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._introduced.get_nowait()

    def close(self) -> None:
        """Hangs up on later callers. Idempotent."""
        self._closed = True
        for _, caller in self.introduced():
            caller.close()

    def _ask(self, caller: Socket) -> None:
        try:
            peer = self._proof.ask(caller, RENDEZVOUS)
            number = None if peer is None else _number_of(caller, peer, self._tasks)
        finally:
            self._strangers.remove(caller)
        if number is None:
            caller.close()
        else:
            self._introduced.put((number, caller))
            if self._closed:
                self.close()


def _number_of(connection: Socket, peer: Peer, tasks: Sequence[str]) -> int | None:
    """Returns the index of the calling worker; `None` if it is not one."""
    connection.settimeout(ANSWER_S)
    try:
        hello = connection.recv(64).decode("utf-8", "replace").strip()
    except OSError:
        return None
    number = hello.removeprefix(HELLO)
    if not hello.startswith(HELLO) or not number.isdecimal() or not 0 < int(number) < len(tasks):
        return None
    return int(number) if peer.may_be(tasks[int(number)]) else None


def _keep_alive(connection: Socket) -> None:
    """Turns on TCP keepalive: the connection is idle after the rendezvous, and packet filters forget idle ones."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_S)


def has_ended(connection: Socket) -> bool:
    """Whether the process at the other end has closed a connection, or has died."""
    try:
        connection.settimeout(0.0)
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _send(connection: Socket, message: str) -> None:
    connection.settimeout(ANSWER_S)
    with contextlib.suppress(OSError):  # it has gone; the next check notices
        connection.sendall(f"{message}\n".encode())
