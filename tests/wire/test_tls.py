"""Certificates: who is let in, who is refused, and what each side says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.flight as plain
import pytest
from tests.wire.harness import FAST
from tests.wire.serving import EchoHandler

from trainband.cluster.certificate_files import PS_NAME, CertificateFiles, read_uri
from trainband.cluster.certificates import issue, listing, make_authority, revoke
from trainband.cluster.credentials import Credentials
from trainband.cluster.identity import Identity, Role
from trainband.errors import AuthenticationError, ClusterError, PeerError, StreamClosed, Unreachable
from trainband.runtime.overrides import override
from trainband.wire.flight import FlightTransport
from trainband.wire.network import Network
from trainband.wire.security import revocation
from trainband.wire.security.tls import Tls
from trainband.wire.shared_memory.listener import SharedMemoryListener, open_shared_memory_stream
from trainband.wire.transport import ANYBODY, Caller, Stream, Transport


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ca")
    make_authority(directory)
    for name in ("ps:0", "worker:0", "worker:1", "observer"):
        issue(directory, name)
    return directory


def task(directory: Path | None, name: str) -> FlightTransport:
    return FlightTransport(Credentials(tls=directory), Identity(name, "once"))


@contextmanager
def serving(directory: Path | None, name: str = "ps:0") -> Iterator[str]:
    listener = task(directory, name).listen("127.0.0.1:0", EchoHandler(), FAST)
    try:
        yield listener.address
    finally:
        listener.stop(1.0)


def echoed(directory: Path | None, name: str, address: str) -> bytes:
    connection = task(directory, name).connect(address, FAST)
    try:
        return connection.call("echo", b"hello", timeout_s=20.0)
    finally:
        connection.close()


def copy_of(directory: Path, to: Path) -> Path:
    to.mkdir()
    for path in directory.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
        (to / path.name).chmod(0o600)
    return to


def test_those_with_certificates_talk(ca: Path) -> None:
    with serving(ca) as address:
        assert echoed(ca, "worker:1", address) == b"hello"


def test_one_without_is_told_what_it_needs(ca: Path) -> None:
    with serving(ca) as address, pytest.raises(AuthenticationError, match=r"serves with TLS only.*TRAINBAND_TLS"):
        echoed(None, "worker:1", address)


def test_one_with_certificates_does_not_talk_in_clear(ca: Path) -> None:
    with serving(None) as address, pytest.raises(AuthenticationError, match="does not speak TLS"):
        echoed(ca, "worker:1", address)


def foreign(ca: Path, other: Path) -> Path:
    """A worker of another authority, which takes the job's for its own."""
    make_authority(other)
    issue(other, "worker:1")
    (other / "ca.pem").write_bytes((ca / "ca.pem").read_bytes())
    return other


def expired(ca: Path, other: Path) -> Path:
    copy_of(ca, other)
    issue(other, "worker:1", days=-1.0)
    return other


@pytest.mark.parametrize("make", [foreign, expired])
def test_foreign_and_expired_ones_are_refused(
    ca: Path, tmp_path: Path, make: Callable[[Path, Path], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        serving(ca) as address,
        pytest.raises(AuthenticationError, match=r"does not accept the certificate .*worker-1"),
    ):
        echoed(make(ca, tmp_path / "other"), "worker:1", address)
    capfd.readouterr()


def test_a_foreign_or_expired_listener_is_refused(ca: Path, tmp_path: Path) -> None:
    stranger, old = tmp_path / "stranger", copy_of(ca, tmp_path / "old")
    make_authority(stranger)
    issue(stranger, "ps:0")
    with serving(stranger) as address, pytest.raises(AuthenticationError, match=r"is not accepted: .*(self|unable)"):
        echoed(ca, "worker:1", address)
    issue(old, "ps:0", days=-1.0)
    with serving(old) as address, pytest.raises(AuthenticationError, match=r"is not accepted: .*expired"):
        echoed(ca, "worker:1", address)


def test_a_revoked_one_is_refused_on_both_sides(ca: Path, tmp_path: Path) -> None:
    job = copy_of(ca, tmp_path / "job")
    with serving(job) as address:
        connection = task(job, "worker:0").connect(address, FAST)
        assert connection.call("echo", b"", timeout_s=20.0) == b""
        revoke(job, "worker:0")  # while it is connected
        with pytest.raises(AuthenticationError, match=r"certificate of worker:0 \(serial [0-9a-f]+\) was revoked"):
            connection.call("echo", b"", timeout_s=20.0)
        connection.close()
        assert echoed(job, "worker:1", address) == b"hello"
        revoke(job, "ps:0")
        with pytest.raises(AuthenticationError, match=r"certificate of ps:0 at 127.0.0.1:\d+ .* was revoked"):
            echoed(job, "worker:1", address)


@contextmanager
def streaming(transport: Transport, listener: Transport) -> Iterator[tuple[Stream, EchoHandler]]:
    """A stream that has carried a frame, and the handler that serves it."""
    handler = EchoHandler()
    served = listener.listen("127.0.0.1:0", handler, FAST)
    connection = transport.connect(served.address, FAST)
    try:
        stream = connection.open_stream(timeout_s=10.0)
        stream.send(b"hello")
        while stream.receive(5.0) is None:
            pass
        yield stream, handler
    finally:
        connection.close()
        served.stop(1.0)


TRANSPORTS = ("flight", "shared-memory", "ucx")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_streams_of_a_revoked_task_end(
    ca: Path, tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation, "LOOK_S", 0.05)
    job, apart = copy_of(ca, tmp_path / "job"), copy_of(ca, tmp_path / "apart")

    def network(directory: Path, name: str) -> Network:
        return Network(
            transport, trusted_fabric=True, credentials=Credentials(tls=directory), identity=Identity(name, "once")
        )

    with streaming(network(apart, "worker:0"), network(job, "ps:0")) as (stream, handler):
        revoke(job, "worker:0")  # at the ps, of which the worker does not hear
        assert isinstance(handler.ended.get(timeout=10.0), StreamClosed)
    apart, job = copy_of(ca, tmp_path / "apart2"), copy_of(ca, tmp_path / "job2")
    with streaming(network(job, "worker:0"), network(apart, "ps:0")) as (stream, _):
        revoke(job, "ps:0")  # at the worker
        with pytest.raises(StreamClosed):
            list(iter(lambda: stream.receive(0.1), b"for ever"))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_task_revoked_while_it_is_connected_opens_no_stream(ca: Path, tmp_path: Path, transport: str) -> None:
    job, apart = copy_of(ca, tmp_path / "job"), copy_of(ca, tmp_path / "apart")
    credentials = [Credentials(tls=directory) for directory in (job, apart)]
    ps = Network(transport, trusted_fabric=True, credentials=credentials[0], identity=Identity("ps:0", "once"))
    worker = Network(transport, trusted_fabric=True, credentials=credentials[1], identity=Identity("worker:0", "once"))
    listener = ps.listen("127.0.0.1:0", handler := EchoHandler(), FAST)
    connection = worker.connect(listener.address, FAST)
    ticket = connection._flight.ticket(timeout_s=20.0)  # type: ignore[attr-defined]  # noqa: SLF001 - got before
    revoke(job, "worker:0")
    with pytest.raises(PeerError):
        connection.open_stream(timeout_s=2.0)
    for one in listener._stream_listeners:  # type: ignore[attr-defined]  # noqa: SLF001
        if isinstance(one, SharedMemoryListener):
            with pytest.raises(Unreachable):
                open_shared_memory_stream(one.name, "ps:0", FAST, 2.0, lambda _: None, ticket)
    assert not handler.streams
    connection.close()
    listener.stop(1.0)


def test_a_member_that_is_cut_off_while_it_connects_tries_again(ca: Path) -> None:
    with serving(ca) as address, socket.create_server(("127.0.0.1", 0)) as relay:
        host, _, port = address.rpartition(":")

        relay.settimeout(10.0)

        def forward() -> None:
            relay.accept()[0].close()
            near, far = relay.accept()[0], socket.create_connection((host, int(port)))
            with near, far:
                pump = threading.Thread(target=copy, args=(near, far))
                pump.start()
                copy(far, near)
                pump.join()

        def copy(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=forward)
        thread.start()
        tls = Tls(ca, Identity("worker:1"))
        _, certified = tls.fetch_certificate(f"127.0.0.1:{relay.getsockname()[1]}", 5.0)
        assert certified.identity.name == "ps:0"
        thread.join(10.0)


def test_a_worker_is_no_ps_and_a_name_is_not_for_another(ca: Path) -> None:
    with serving(ca, "worker:0") as address, pytest.raises(AuthenticationError, match="only a ps serves"):
        echoed(ca, "worker:1", address)
    with serving(ca) as address:
        stolen = CertificateFiles(ca, "worker-1")
        assert stolen.certificate
        thief = ca.parent / "thief"
        copy_of(ca, thief)
        (thief / "worker-0.pem").write_bytes(stolen.certificate)
        (thief / "worker-0.key").write_bytes(stolen.key)
        with pytest.raises(AuthenticationError, match="the certificate of worker:1 calls itself worker:0"):
            echoed(thief, "worker:0", address)


def test_each_task_may_look_with_its_own_certificate_and_do_no_more(ca: Path, tmp_path: Path) -> None:
    own = copy_of(ca, tmp_path / "own")
    for path in own.iterdir():
        if path.name not in ("ca.pem", "worker-1.pem", "worker-1.key"):
            path.unlink()
    callers: list[Caller] = []

    class Asked(EchoHandler):
        @override
        def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
            callers.append(caller)
            return super().call(action, body, caller)

    listener = task(ca, "ps:0").listen("127.0.0.1:0", Asked(), FAST)
    try:
        assert echoed(own, "observer", listener.address) == b"hello"
    finally:
        listener.stop(1.0)
    identity = callers[0].identity
    assert identity is not None
    assert identity.name == "observer"
    assert identity.roles == {Role.OBSERVER}


def test_the_hosts_of_a_certificate_count(ca: Path, tmp_path: Path) -> None:
    job = copy_of(ca, tmp_path / "job")
    issue(job, "ps:0", ["10.0.0.7", "ps0.example.org"])
    with serving(job) as address:
        assert echoed(job, "worker:1", address) == b"hello"  # this machine always does
        (job / "ps-0.pem").rename(job / "kept")
        (job / "kept").rename(job / "ps-0.pem")
    found = {one.name: one.hosts for one in listing(job)}
    assert found["ps:0"] == ("ps0.example.org", "localhost", "10.0.0.7", "127.0.0.1", "::1")


def test_any_flight_client_with_a_certificate_reads(ca: Path) -> None:
    files = CertificateFiles.find(ca, Identity("observer"))
    with serving(ca) as address:
        secrets = {"cert_chain": files.certificate, "private_key": files.key, "tls_root_certs": files.authority}
        with plain.connect(f"grpc+tls://{address}", override_hostname=PS_NAME, **secrets) as client:
            assert list(client.list_flights()) == []
            with pytest.raises(plain.FlightServerError, match="no variable 'w'"):
                client.do_get(plain.Ticket("w"))


def test_new_certificates_are_used_by_new_connections(ca: Path, tmp_path: Path) -> None:
    job = copy_of(ca, tmp_path / "job")
    with serving(ca) as address:
        transport = task(job, "worker:1")
        before = CertificateFiles.find(job, Identity("worker:1")).certificate
        issue(job, "worker:1")
        connection = transport.connect(address, FAST)
        assert connection.call("echo", b"", timeout_s=20.0) == b""
        connection.close()
        assert CertificateFiles.find(job, Identity("worker:1")).certificate != before


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: (d / "worker-1.pem").unlink(), r"no certificate for worker:1.*trainband certs issue"),
        (lambda d: (d / "worker-1.key").unlink(), r"worker-1\.key cannot be read"),
        (lambda d: (d / "worker-1.key").chmod(0o644), r"every user of this machine can read; chmod 600"),
        (lambda d: (d / "ca.pem").unlink(), r"ca\.pem cannot be read"),
    ],
)
def test_what_a_directory_lacks_is_named(
    ca: Path, tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    job = copy_of(ca, tmp_path / "job")
    damage(job)
    with pytest.raises(ClusterError, match=words):
        task(job, "worker:1")


def test_an_authority_is_never_replaced(ca: Path) -> None:
    with pytest.raises(ClusterError, match="already has an authority"):
        make_authority(ca)


@pytest.mark.parametrize(
    "uri",
    ["", "x", "trainband://", "trainband://worker/0", "trainband://worker/-1?serial=1", "http://worker/0?serial=1"],
)
def test_other_names_are_refused(uri: str) -> None:
    with pytest.raises(ClusterError, match="`trainband certs` did not issue it"):
        read_uri(uri)
