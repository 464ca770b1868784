"""What only UCX has: a key instead of a port, two ends that may not match, and settings that may be wrong."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.programs import ROOT, until
from tests.wire.harness import FAST
from tests.wire.processes import task
from tests.wire.serving import EchoHandler

from trainband.cluster.credentials import Credentials
from trainband.cluster.resolvers.credentials import INSECURE
from trainband.cluster.resolvers.transport import TRANSPORT, resolve_transport, resolve_trusted_fabric
from trainband.cluster.transport_choice import TRUSTED_FABRIC, TransportChoice
from trainband.errors import ClusterError, DeadlineExceeded, RefusalCode, Refused, StreamClosed, TransportUnavailable
from trainband.wire import ucx
from trainband.wire.messages.codec import encode
from trainband.wire.network import Network
from trainband.wire.transport import Connection, Listener, Stream
from trainband.wire.ucx import context
from trainband.wire.ucx.endpoint import Endpoint
from trainband.wire.ucx.listener import Ask, Granted, UcxListener, same_version


@pytest.fixture
def handler() -> Iterator[EchoHandler]:
    """Echoes, until the test ends."""
    handler = EchoHandler()
    yield handler
    handler.finish.set()


@pytest.fixture
def listen(handler: EchoHandler) -> Iterator[Callable[[str], Listener]]:
    """Listens with a transport, until the test ends."""
    listeners: list[Listener] = []

    def start(transport: str) -> Listener:
        listeners.append(Network(transport).listen("127.0.0.1:0", handler, FAST))
        return listeners[-1]

    yield start
    for listener in listeners:
        listener.stop(2.0)


def answered(connection: Connection) -> str:
    """By which way a frame went there and back."""
    stream = connection.open_stream(timeout_s=20.0)
    stream.send(b"x", [np.ones(3)])
    while (frame := stream.receive(1.0)) is None:
        pass
    assert frame.header == b"x"
    connection.close()
    return stream.transport


class TestWhichWay:
    @pytest.mark.parametrize(
        ("theirs", "mine", "way"),
        [
            ("auto", "auto", "shared memory"),
            ("auto", "ucx", "ucx: tcp"),
            ("ucx", "auto", "ucx: tcp"),
            ("auto", "flight", "flight"),
            ("flight", "auto", "flight"),
            ("auto", "shared-memory", "shared memory"),
        ],
    )
    def test_two_ends(self, listen: Callable[[str], Listener], theirs: str, mine: str, way: str) -> None:
        assert answered(Network(mine).connect(listen(theirs).address, FAST)) == way

    @pytest.mark.parametrize(
        ("theirs", "mine", "message"),
        [
            ("flight", "ucx", "takes no streams over UCX"),
            ("flight", "shared-memory", "cannot be reached through shared memory"),
        ],
    )
    def test_what_was_asked_for_is_not_replaced(
        self, listen: Callable[[str], Listener], theirs: str, mine: str, message: str
    ) -> None:
        connection = Network(mine).connect(listen(theirs).address, FAST)
        with pytest.raises(TransportUnavailable, match=message):
            connection.open_stream(timeout_s=20.0)
        connection.close()

    def test_one_end_without_ucx(self, listen: Callable[[str], Listener], monkeypatch: pytest.MonkeyPatch) -> None:
        address = listen("auto").address
        monkeypatch.setattr(context, "_found", [TransportUnavailable("no UCX: pip install it")])
        connection = Network("ucx").connect(address, FAST)
        with pytest.raises(TransportUnavailable, match="pip install"):
            connection.open_stream(timeout_s=20.0)
        with pytest.raises(TransportUnavailable, match="pip install"):
            Network("ucx").listen("127.0.0.1:0", EchoHandler(), FAST)
        assert answered(Network("auto").connect(address, FAST)) == "shared memory"
        connection.close()

    def test_versions_that_may_not_understand_each_other(self) -> None:
        assert same_version("1.22.0", "1.22.3")
        assert not same_version("1.22.0", "1.21.0")

    def test_another_version_at_the_other_end(self, listen: Callable[[str], Listener]) -> None:
        connection = Network("ucx").connect(listen("ucx").address, FAST)
        with pytest.raises(Refused, match=r"^has UCX 1\.\d+\.\d+, the other end UCX 1\.9\.0, .*same version") as caught:
            connection.call(ucx.OPEN, encode(Ask(version="1.9.0", address=b"x", key=1)), timeout_s=20.0)
        assert caught.value.code is RefusalCode.NO_UCX
        connection.close()

    @pytest.mark.parametrize("credentials", [Credentials(secret=b"s" * 32), Credentials(tls=Path("ca"))])
    def test_security_keeps_streams_from_ucx(self, credentials: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(TRUSTED_FABRIC)
        assert TransportChoice.UCX not in Network("auto").transports  # with the user's own secret
        monkeypatch.setenv(INSECURE, "1")
        assert TransportChoice.UCX in Network("auto").transports
        with pytest.raises(ClusterError, match=f"UCX neither encrypts nor authenticates.*{TRUSTED_FABRIC}=1"):
            Network("ucx", credentials=credentials)
        assert TransportChoice.UCX not in Network("auto", credentials=credentials).transports
        assert TransportChoice.UCX in Network("auto", credentials=credentials, trusted_fabric=True).transports

    def test_what_the_environment_says(self) -> None:
        assert resolve_transport({TRANSPORT: "ucx"}) is TransportChoice.UCX
        assert resolve_transport({}) is TransportChoice.AUTO
        with pytest.raises(ClusterError, match=f"{TRANSPORT} = 'rdma' is not a transport; use one of auto"):
            resolve_transport({TRANSPORT: "rdma"})
        assert resolve_trusted_fabric({TRUSTED_FABRIC: "1"})
        with pytest.raises(ClusterError, match=TRUSTED_FABRIC):
            resolve_trusted_fabric({TRUSTED_FABRIC: "yes"})


def run(code: str, **environ: str) -> str:
    """What a program prints that has an environment of its own: UCX reads it when it is loaded."""
    program = f"from trainband.wire.ucx import ucx\n{code}"
    path = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **path, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


class TestSettings:
    def test_a_device_that_is_not_there(self) -> None:
        said = run(
            "try: print(ucx().make_worker())\nexcept Exception as exc: print(type(exc).__name__, exc)",
            UCX_NET_DEVICES="mlx9_9:1",
            UCX_TLS="tcp",
        )
        assert "TransportUnavailable" in said
        assert "UCX_NET_DEVICES=mlx9_9:1" in said

    def test_ports_that_are_taken(self) -> None:
        with socket.socket() as taken:
            taken.bind(("0.0.0.0", 0))
            taken.listen()
            port = taken.getsockname()[1]
            said = run(
                "try: print(ucx().make_worker())\nexcept Exception as exc: print(type(exc).__name__, exc)",
                UCX_TCP_PORT_RANGE=f"{port}-{port}",
                UCX_TLS="tcp",
            )
        assert "TransportUnavailable" in said
        assert f"UCX_TCP_PORT_RANGE={port}-{port}" in said

    def test_too_little_memory_may_be_locked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(context, "has_rdma", lambda: True)
        monkeypatch.setattr("resource.getrlimit", lambda _: (64 << 10, 64 << 10))
        with pytest.raises(TransportUnavailable, match=r"may have 64 KiB: raise `ulimit -l`"):
            ucx.ucx().check(-4, "it cannot create a worker")


class TestPeers:
    def test_one_that_dies_in_the_middle_of_a_large_body(self) -> None:
        with task("ucx/serve") as server:
            connection = Network("ucx").connect(server.line(), FAST)
            stream = connection.open_stream(timeout_s=10.0)
            failed: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

            def send() -> None:
                try:
                    while True:
                        stream.send(b"quiet", [np.zeros(400_000_000, np.uint8)])
                except StreamClosed as exc:  # and not a deadline
                    failed.put(exc)

            sender = threading.Thread(target=send)
            sender.start()
            until(lambda: stream._outbox.taken > 0, "the first pieces")  # type: ignore[attr-defined]  # noqa: SLF001
            server.process.send_signal(signal.SIGKILL)
            assert "127.0.0.1" in str(failed.get(timeout=60.0))
            sender.join()
            connection.close()

    @pytest.mark.parametrize("way", ["auto", "ucx"])
    def test_ports_that_cannot_be_reached(self, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
        gone = Endpoint(ucx.ucx(), key=1)
        with gone.lock:
            address = gone.address
        gone.destroy()
        monkeypatch.setattr(UcxListener, "open", lambda *_: encode(Granted(address=address)))
        monkeypatch.setattr("trainband.wire.network.is_supported", lambda: False)  # another machine, so to speak
        said: list[str] = []
        listener = Network(way, say=said.append).listen("127.0.0.1:0", EchoHandler(), FAST)
        connection = Network(way, say=said.append).connect(listener.address, FAST)
        closed = r"answers, but could not be reached over UCX.*check that no firewall blocks the ports"
        if way == "ucx":
            with pytest.raises(DeadlineExceeded, match=closed):
                connection.open_stream(timeout_s=3.0)
        else:
            assert connection.open_stream(timeout_s=10.0).transport == "flight"
            assert connection.open_stream(timeout_s=10.0).transport == "flight"
            (warning,) = said
            assert re.search(f"^WARNING: the stream to {listener.address} uses Flight: .*{closed}", warning)
        connection.close()
        listener.stop(1.0)

    def test_garbage_from_a_stranger(self, listen: Callable[[str], Listener]) -> None:
        listener = listen("ucx")
        connection = Network("ucx").connect(listener.address, FAST)
        stream = connection.open_stream(timeout_s=20.0)
        rng = np.random.default_rng(0)
        for address in _listening():
            for size in (1, 8, 100, 70_000):
                with socket.create_connection(address, timeout=20.0) as stranger, contextlib.suppress(ConnectionError):
                    stranger.sendall(rng.bytes(size))
        for _ in range(3):
            assert _echo(stream, 7.0) == 7.0
        connection.close()

    def test_one_without_the_key_is_not_heard(self, listen: Callable[[str], Listener], handler: EchoHandler) -> None:
        listener = listen("ucx")
        connection = Network("ucx").connect(listener.address, FAST)
        stream = connection.open_stream(timeout_s=20.0)
        assert _echo(stream, 1.0) == 1.0
        (theirs,) = handler.streams
        theirs_end = getattr(theirs, "_endpoint")  # noqa: B009 - nobody tells a stranger
        stranger = Endpoint(ucx.ucx(), key=12345)
        with stranger.lock:
            stranger.connect(theirs_end.address)
            stranger.send(1, 0, 0)

        def is_discarded() -> bool:
            stranger.wait(lambda: False, 0.0)
            return bool(theirs_end._strays == 1)  # noqa: SLF001

        until(is_discarded, "its end")
        assert _echo(stream, 2.0) == 2.0
        stranger.destroy()
        connection.close()

    def test_one_who_sends_much_without_the_key_fills_no_memory(
        self, listen: Callable[[str], Listener], handler: EchoHandler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trainband.wire.network.is_supported", lambda: False)  # another machine, so to speak
        monkeypatch.setattr(ucx.ucx(), "_strangers_at", -math.inf)  # and forgotten afterwards
        connection = Network("auto").connect(listen("auto").address, FAST)
        stream = connection.open_stream(timeout_s=20.0)
        assert stream.transport == "ucx: tcp"
        (theirs,) = handler.streams
        address = getattr(theirs, "_endpoint").address  # noqa: B009
        body = np.zeros(100_000, np.uint8)
        strangers = [Endpoint(ucx.ucx(), key=random.getrandbits(56)) for _ in range(40)]
        for stranger in strangers:
            with stranger.lock:
                stranger.connect(address)
                stranger.send(1, body.ctypes.data, body.nbytes)

        def is_over() -> bool:
            for stranger in strangers:
                stranger.wait(lambda: False, 0.0)
            return not handler.ended.empty()

        until(is_over, "the end of the stream")
        with pytest.raises(StreamClosed):
            _echo(stream, 1.0)
        assert connection.open_stream(timeout_s=20.0).transport == "flight"
        for stranger in strangers:
            stranger.destroy()
        connection.close()


def _echo(stream: Stream, value: float) -> float:
    stream.send(b"x", [np.full(1000, value)])
    while (frame := stream.receive(1.0)) is None:
        pass
    return float(frame.body[0].view(np.float64)[0])


def _listening() -> list[tuple[str, int]]:
    """Where this process listens: Flight's port, and those of UCX's workers."""
    mine = psutil.Process().net_connections("inet")
    return [(one.laddr.ip, one.laddr.port) for one in mine if one.status == psutil.CONN_LISTEN]
