"""Admission to the rendezvous and to JAX's coordination service, in one process over real sockets."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from trainband.cluster import Address
from trainband.cluster.certificate_files import CertificateFiles
from trainband.cluster.certificates import issue, make_authority, revoke
from trainband.cluster.identity import Identity
from trainband.errors import AuthenticationError, ClusterError, DeadlineExceeded
from trainband.runtime.system import SystemRuntime
from trainband.spmd.coordination_guard import CoordinationGuard
from trainband.spmd.coordinator_proxy import CoordinatorProxy
from trainband.spmd.private_socket import PrivateSocket
from trainband.spmd.proof import PROOF_S, Peer, Proof
from trainband.spmd.rendezvous import rendezvous
from trainband.spmd.sockets import Socket
from trainband.spmd.strangers import MOST_STRANGERS, Strangers

SECRET, OTHER = b"s" * 32, b"o" * 32
TASKS = ["worker:0", "worker:1"]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ca")
    make_authority(directory)
    for name in ("ps:0", "worker:0", "worker:1", "worker:2", "observer", "evaluator:0"):
        issue(directory, name)
    revoke(directory, "worker:2")
    return directory


def certified(ca: Path, name: str, secret: bytes = b"") -> Proof:
    return Proof(secret, CertificateFiles.find(ca, Identity(name)))


def proved(listener: Proof, caller: Proof, purpose: str = "rendezvous") -> Peer | None:
    """Returns the listener's view of the caller. Both then read what follows on the connection."""
    here, there = socket.socketpair()

    def ask() -> Peer | None:
        peer = listener.ask(here, "rendezvous")
        if peer is None:
            here.close()
        return peer

    with here, there, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        caller.present(there, purpose, "worker:0", "worker:0 at 10.0.0.7:2222")
        peer = asked.result(10.0)
        for one, other, word in ((here, there, b"one"), (there, here, b"other")):
            one.sendall(word)
            assert other.recv(64) == word
        return peer


def test_those_who_belong_to_the_job_are_taken_in(ca: Path) -> None:
    assert proved(Proof(), Proof()) == Peer()
    assert proved(Proof(SECRET), Proof(SECRET)) == Peer()
    assert proved(certified(ca, "worker:0"), certified(ca, "worker:1")) == Peer(Identity("worker:1"))
    both = certified(ca, "worker:0", SECRET), certified(ca, "worker:1", SECRET)
    assert proved(*both) == Peer(Identity("worker:1"))


@pytest.mark.parametrize(
    ("caller", "words"),
    [
        (lambda _: Proof(OTHER), "do not know the same secret"),
        (lambda ca: certified(ca, "observer"), r"refuses this task: the certificate of observer is not a worker's"),
        (lambda ca: certified(ca, "ps:0"), r"refuses this task: the certificate of ps:0 is not a worker's"),
        (lambda ca: certified(ca, "worker:2"), "certificate of worker:2 was revoked"),
    ],
)
def test_others_are_refused_and_told_why(ca: Path, caller: Callable[[Path], Proof], words: str) -> None:
    given = caller(ca)
    listener = Proof(SECRET) if given._certificates is None else certified(ca, "worker:0")  # noqa: SLF001
    with pytest.raises(AuthenticationError, match=words):
        proved(listener, given)


def test_nobody_is_taken_in_while_the_list_of_the_revoked_cannot_be_read(ca: Path, tmp_path: Path) -> None:
    directory = tmp_path / "ca"
    shutil.copytree(ca, directory)
    (directory / "revoked").unlink()
    (directory / "revoked").mkdir()
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(certified(directory, "worker:0").ask, here, "rendezvous")
        with pytest.raises(ClusterError):
            certified(directory, "worker:1").present(there, "rendezvous", "worker:0", "worker:0")
        there.close()
        assert asked.result(10.0) is None


def test_a_proof_for_one_purpose_is_none_for_another() -> None:
    with pytest.raises(ConnectionError):  # it may be of use later
        proved(Proof(SECRET), Proof(SECRET), "coordination")


def test_certificates_of_another_authority_are_refused_on_both_sides(ca: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "other")
    issue(tmp_path / "other", "worker:0")
    issue(tmp_path / "other", "worker:1")
    foreign = tmp_path / "other"
    with pytest.raises(AuthenticationError, match="reject each other's certificates"):
        proved(certified(ca, "worker:0"), certified(foreign, "worker:1"))
    (foreign / "ca.pem").write_bytes((ca / "ca.pem").read_bytes())  # it takes the job for its own
    with pytest.raises(AuthenticationError, match="reject each other's certificates"):
        proved(certified(ca, "worker:0"), certified(foreign, "worker:1"))


def test_a_listener_of_another_name_is_no_chief(ca: Path) -> None:
    with pytest.raises(AuthenticationError, match="has the certificate of worker:1"):
        proved(certified(ca, "worker:1"), certified(ca, "worker:1"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_strangers_do_not_keep_the_workers_waiting(ca: Path) -> None:
    """Silent callers, callers without any secret, and one with another task's certificate."""
    chief, met = Address("127.0.0.1", free_port()), dict[int, dict[int, Socket]]()
    proof = certified(ca, "worker:0")
    thread = Thread(target=lambda: met.update({0: rendezvous(chief, 0, TASKS, 20.0, print, proof)}))
    thread.start()
    strangers: list[socket.socket] = []
    while len(strangers) < 20:
        try:
            strangers.append(socket.create_connection((chief.host, chief.port)))
        except ConnectionRefusedError:
            assert thread.is_alive()
    strangers[0].sendall(b"trainband worker 1\n")
    with pytest.raises(DeadlineExceeded):
        rendezvous(chief, 1, [TASKS[0], "worker:0"], 1.0, print, proof)
    assert thread.is_alive(), "somebody else was taken for worker:1"
    met[1] = rendezvous(chief, 1, TASKS, 10.0, print, certified(ca, "worker:1"))
    thread.join()
    for connection in (*strangers, *met[0].values(), *met[1].values()):
        connection.close()


def test_a_crowd_of_strangers_keeps_no_worker_out() -> None:
    chief, met = Address("127.0.0.1", free_port()), dict[int, dict[int, Socket]]()
    proof = Proof(SECRET)
    thread = Thread(target=lambda: met.update({0: rendezvous(chief, 0, TASKS, 20.0, print, proof)}))
    thread.start()
    strangers: list[socket.socket] = []
    while len(strangers) < 2 * MOST_STRANGERS:
        try:
            strangers.append(socket.create_connection((chief.host, chief.port)))
        except ConnectionRefusedError:
            assert thread.is_alive()
    # In less time than a silent stranger may take.
    met[1] = rendezvous(chief, 1, TASKS, 0.8 * PROOF_S, print, proof)
    thread.join()
    for connection in (*strangers, *met[0].values(), *met[1].values()):
        connection.close()


def test_lots_decide_which_stranger_has_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Counter[int]()
    for seed in range(50):
        pairs = [socket.socketpair() for _ in range(3)]
        runtime = SystemRuntime()
        monkeypatch.setattr(runtime, "token", lambda seed=seed: str(seed))
        strangers = Strangers(2, runtime)
        for here, _ in pairs:
            strangers.add(here)
        for number, (here, there) in enumerate(pairs):
            there.setblocking(False)
            with suppress(BlockingIOError):
                assert there.recv(1) == b""
                gone[number] += 1
            strangers.remove(here)
            here.close()
            there.close()
    assert gone.keys() == {0, 1, 2}
    assert gone.total() == 50


def test_the_length_of_a_socket_s_path_counts_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        directory = Path(short, "é" * 45)
        directory.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(directory))
        place = PrivateSocket()
        place.listen().close()
        place.seal()


@pytest.fixture
def service() -> Iterator[PrivateSocket]:
    """Echoes each connection, in place of JAX's service."""
    place = PrivateSocket()
    listener = place.listen()

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller:
                caller.sendall(b"service: " + caller.recv(64))

    thread = Thread(target=serve)
    thread.start()
    yield place
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    place.seal()


def test_the_service_is_reached_by_proof_alone_and_from_this_user_s_processes(service: PrivateSocket) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    guard = CoordinationGuard(listener, service, Proof(SECRET))
    proxy = CoordinatorProxy(host, port, "worker:0", Proof(SECRET))
    try:
        path = Path(proxy.address.removeprefix("unix:"))
        for one in (path, service.path):
            assert one.parent.stat().st_mode & 0o777 == 0o700
            assert one.parent.stat().st_uid == os.getuid()
        with socket.socket(socket.AF_UNIX) as inside:
            inside.connect(str(path))
            proxy.seal()
            assert not path.parent.exists()
            inside.sendall(b"hello")
            assert inside.recv(64) == b"service: hello"
        with socket.create_connection((host, port)) as stranger:
            stranger.sendall(b"x" * 48)
            assert b"service" not in stranger.recv(64)
    finally:
        proxy.close()
        guard.close()


def test_no_part_of_it_listens_on_a_port_of_its_own(service: PrivateSocket) -> None:
    """Other users of the machine could reach such ports: only the guard has one, at the cluster's address."""
    before = listening_ports()
    listener = socket.create_server(("127.0.0.1", 0))
    guard = CoordinationGuard(listener, service, Proof(SECRET))
    proxy = CoordinatorProxy("127.0.0.1", listener.getsockname()[1], "worker:0", Proof(SECRET))
    try:
        assert listening_ports() - before == {listener.getsockname()[1]}
    finally:
        proxy.close()
        guard.close()


def listening_ports() -> set[int]:
    """Ports on which this process listens."""
    own = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    tables = [Path(f"/proc/self/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own}
