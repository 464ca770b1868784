"""Certificates: who is let in, who is refused, and what each side says."""

from __future__ import annotations

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
from trainband.cluster.identity import Identity
from trainband.errors import AuthenticationError, ClusterError
from trainband.wire.flight import FlightTransport


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
        return connection.call("echo", b"hello", timeout_s=5.0)
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
    with serving(ca) as address, pytest.raises(AuthenticationError, match=r"does not take the certificate .*worker-1"):
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
        assert connection.call("echo", b"", timeout_s=5.0) == b""
        revoke(job, "worker:0")  # while it is connected
        with pytest.raises(AuthenticationError, match=r"certificate of worker:0 \(serial [0-9a-f]+\) was revoked"):
            connection.call("echo", b"", timeout_s=5.0)
        connection.close()
        assert echoed(job, "worker:1", address) == b"hello"
        revoke(job, "ps:0")
        with pytest.raises(AuthenticationError, match=r"certificate of ps:0 at 127.0.0.1:\d+ .* was revoked"):
            echoed(job, "worker:1", address)


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
        assert connection.call("echo", b"", timeout_s=5.0) == b""
        connection.close()
        assert CertificateFiles.find(job, Identity("worker:1")).certificate != before


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: (d / "worker-1.pem").unlink(), r"no certificate for worker:1.*trainband certs issue"),
        (lambda d: (d / "worker-1.key").unlink(), r"worker-1\.key cannot be read"),
        (lambda d: (d / "worker-1.key").chmod(0o644), r"every user of this machine can read: chmod 600"),
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
    with pytest.raises(ClusterError, match="has an authority already"):
        make_authority(ca)


@pytest.mark.parametrize(
    "uri",
    ["", "x", "trainband://", "trainband://worker/0", "trainband://worker/-1?serial=1", "http://worker/0?serial=1"],
)
def test_other_names_are_refused(uri: str) -> None:
    with pytest.raises(ClusterError, match="which `trainband certs` does not"):
        read_uri(uri)
