"""What is particular to Flight: its public face, and ports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.flight as plain
import pytest
from tests.programs import until
from tests.wire.harness import FAST
from tests.wire.processes import task
from tests.wire.serving import EchoHandler

from trainband.errors import (
    AddressInUse,
    ClusterError,
    DeadlineExceeded,
    NoTaskListens,
    ProtocolError,
    UnknownHost,
    Unreachable,
)
from trainband.wire.flight import FlightConnection, FlightListener, FlightTransport
from trainband.wire.flight.frames import FRAME, MORE, PREFIX, FrameReader, StreamState
from trainband.wire.flight.outbox import batch_of
from trainband.wire.messages.codec import encode
from trainband.wire.security.handshake import PROTOCOL, Hello
from trainband.wire.transport import Timeouts


@pytest.fixture
def handler() -> EchoHandler:
    rng = np.random.default_rng(0)
    handler = EchoHandler()
    handler.variables = {
        "hidden/kernel": rng.standard_normal((784, 100)).astype(np.float32),
        "hidden/bias": rng.standard_normal(100).astype(np.float32),
        "large": rng.standard_normal((3000, 1000)),
        "half": rng.standard_normal((4, 3, 2)).astype(np.float16),
        "brain": rng.standard_normal((5, 3)).astype(ml_dtypes.bfloat16),
        "eight": rng.standard_normal((5, 3)).astype(ml_dtypes.float8_e4m3fn),
        "mask": np.array([[True, False, True]]),
        "step": np.array(17, np.int64),
        "no rows": np.empty((0, 3), np.float32),
        "no columns": np.empty((3, 0), np.float32),
    }
    return handler


@pytest.fixture
def listener(handler: EchoHandler) -> Iterator[FlightListener]:
    listener = FlightListener("127.0.0.1:0", handler, FAST)
    yield listener
    handler.finish.set()
    listener.stop(2.0)


@pytest.fixture
def client(listener: FlightListener) -> Iterator[Any]:
    with plain.connect(f"grpc://{listener.address}") as client:
        yield client


class TestPublicFace:
    def test_a_plain_client_lists_and_reads(self, client: Any, handler: EchoHandler) -> None:
        infos = {info.descriptor.path[0].decode(): info for info in client.list_flights()}
        assert infos.keys() == handler.variables.keys()
        kernel = infos["hidden/kernel"]
        assert kernel.schema.field("values").type == pa.fixed_shape_tensor(pa.float32(), [100])
        assert kernel.schema.metadata[b"trainband.dtype"] == b"float32"
        assert kernel.total_records == 784
        assert kernel.total_bytes == 784 * 100 * 4
        (endpoint,) = kernel.endpoints
        assert endpoint.locations[0].uri == b"grpc+tcp://10.0.0.7:2222"
        table = client.do_get(endpoint.ticket).read_all()
        np.testing.assert_array_equal(
            table["values"].combine_chunks().to_numpy_ndarray(), handler.variables["hidden/kernel"]
        )
        assert table.schema.metadata[b"trainband.first_row"] == b"0"

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        "name",
        ["hidden/bias", "large", "half", "brain", "eight", "mask", "step", "no rows", "no columns"],
    )
    def test_every_variable_can_be_read(self, client: Any, handler: EchoHandler, name: str) -> None:
        there = handler.variables[name]
        table = client.do_get(plain.Ticket(name)).read_all()
        assert table.num_rows == (there.shape[0] if there.shape else 1)
        rows = table["values"].combine_chunks().storage.flatten().to_numpy(zero_copy_only=False)
        # What Arrow has no type for travels as its bits.
        bits = there.view(rows.dtype) if rows.dtype.kind == "u" else there
        np.testing.assert_array_equal(rows, bits.reshape(-1))

    def test_nobody_assigns_and_the_body_is_not_read(self, client: Any) -> None:
        table = pa.table({"x": pa.array(np.arange(10.0))})
        writer, _ = client.do_put(plain.FlightDescriptor.for_path("hidden/bias"), table.schema)
        with pytest.raises(plain.FlightServerError, match="other clients assign variables"):  # noqa: PT012 - with either
            writer.write_table(table)
            writer.close()

    def test_info_of_one(self, client: Any) -> None:
        info = client.get_flight_info(plain.FlightDescriptor.for_path("brain"))
        assert info.schema.field("values").type == pa.fixed_shape_tensor(pa.uint16(), [3])
        assert info.schema.metadata[b"trainband.dtype"] == b"bfloat16"

    @pytest.mark.parametrize(
        "ask",
        [
            lambda client: client.do_get(plain.Ticket("nothing")).read_all(),
            lambda client: client.get_flight_info(plain.FlightDescriptor.for_path("nothing")),
        ],
    )
    def test_unknown_variables_are_refused_in_words(self, client: Any, ask: Any) -> None:
        with pytest.raises(plain.FlightServerError, match="there is no variable 'nothing' here"):
            ask(client)

    def test_streams_of_others_are_refused(self, client: Any) -> None:
        writer, reader = client.do_exchange(plain.FlightDescriptor.for_command(b"something"))
        with pytest.raises(plain.FlightServerError, match="only exchanges trainband streams"):
            reader.read_chunk()
        with contextlib.suppress(plain.FlightServerError):
            writer.close()


class TestProtocol:
    def test_another_version_is_named(self) -> None:
        class Other(plain.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
            def do_action(self, _context: Any, _action: Any) -> list[Any]:
                return [plain.Result(encode(Hello(protocol=7, incarnation="x")))]

        with Other("grpc://127.0.0.1:0") as server:
            connection = FlightConnection(f"127.0.0.1:{server.port}", FAST)
            with pytest.raises(ProtocolError, match=rf"speaks version 7 .* this task version {PROTOCOL}"):
                connection.open_stream(timeout_s=20.0)
            connection.close()

    def test_a_server_that_is_not_ours(self) -> None:
        with plain.FlightServerBase("grpc://127.0.0.1:0") as server:
            connection = FlightConnection(f"127.0.0.1:{server.port}", FAST)
            with pytest.raises(ProtocolError, match="does not understand"):
                connection.open_stream(timeout_s=20.0)
            connection.close()

    def test_a_listener_that_takes_connections_and_says_nothing(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            connection = FlightConnection(f"127.0.0.1:{mute.getsockname()[1]}", FAST)
            with pytest.raises((DeadlineExceeded, Unreachable)):
                connection.call("echo", timeout_s=0.5)
            connection.close()

    def test_a_listener_that_stands_still(self) -> None:
        timeouts = Timeouts(heartbeat_s=0.1, lease_s=1.0, stall_s=0.5)
        with task("flight/serve") as server:
            connection = FlightConnection(server.line(), timeouts)
            stream = connection.open_stream(timeout_s=10.0)
            server.process.send_signal(signal.SIGSTOP)
            with pytest.raises(DeadlineExceeded, match=r"sent no keepalive for 0\.5 s"):  # noqa: PT012
                while True:
                    stream.receive(0.1)
            with pytest.raises(DeadlineExceeded, match=r"no answer in 0\.3 s"):
                connection.call("echo", timeout_s=0.3)
            connection.close()

    def test_long_silence_does_not_fill_the_window(self, listener: FlightListener) -> None:
        # Neither end reads for many heartbeats; each must stop adding keepalives, and the stream stay usable.
        fast = Timeouts(heartbeat_s=0.002, lease_s=1.0)
        connection = FlightConnection(listener.address, fast)
        stream = connection.open_stream(timeout_s=20.0)
        stream.send(b"gate")
        while (frame := stream.receive(1.0)) is None:
            pass
        assert frame.header == b"entered"
        until(lambda: stream._writer.unread > 16 << 10, "the limit")  # type: ignore[attr-defined]  # noqa: SLF001
        handler = listener.handler
        assert isinstance(handler, EchoHandler)
        handler.finish.set()
        stream.send(b"x", [np.ones(100_000)])
        while (frame := stream.receive(1.0)) is None:
            pass
        assert frame.header == b"x"
        connection.close()


def test_a_frame_of_which_a_waiting_send_has_read_some_messages() -> None:
    body = np.arange(300, dtype=np.int16).view(np.uint8)

    def message(kind: int, start: int, tail: bytes = b"", arrays: int = 0) -> Any:
        metadata = PREFIX.pack(kind, 0, 0, arrays, 3, start, 0) + tail
        return SimpleNamespace(
            app_metadata=pa.py_buffer(metadata), data=batch_of(pa.py_buffer(body[start : start + 200]))
        )

    messages = [message(FRAME, 0, struct.pack("<Q", body.size), 1), message(MORE, 200), message(MORE, 400)]
    source = SimpleNamespace(read_chunk=iter(messages).__next__)
    reader = FrameReader(source, StreamState("a task", FAST, lambda: None, ProtocolError))
    for _ in range(2):
        reader.poll_end()
    assert np.array_equal(reader.frame(*reader.next()).body[0], body)


class TestPorts:
    def test_taken_by_trainband_in_another_process(self) -> None:
        with task("flight/serve") as other:
            address = other.line()
            with pytest.raises(AddressInUse, match=rf"^{address} is taken by another process; end that process .*or"):
                FlightTransport().listen(address, EchoHandler(), FAST)

    @pytest.mark.parametrize("reuse", [False, True])
    def test_taken_by_any_other_server(self, reuse: bool) -> None:
        with socket.socket() as other:
            if reuse:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind(("127.0.0.1", 0))
            other.listen()
            with pytest.raises(AddressInUse, match="is taken by another process"):
                FlightTransport().listen(f"127.0.0.1:{other.getsockname()[1]}", EchoHandler(), FAST)

    def test_bound_but_not_shared(self, capfd: pytest.CaptureFixture[str]) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            with pytest.raises(AddressInUse, match="is taken by another process"):
                FlightTransport().listen(f"127.0.0.1:{other.getsockname()[1]}", EchoHandler(), FAST)
        assert capfd.readouterr() == ("", ""), "gRPC says nothing about it in words of its own"

    @pytest.mark.parametrize("shared", [False, True])
    def test_reserved_by_a_launcher(self, shared: bool) -> None:
        with socket.socket() as reservation:
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reservation.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{reservation.getsockname()[1]}"
            listener = FlightTransport().listen(address, EchoHandler(), FAST)
            connection = FlightTransport().connect(address, FAST)
            for _ in range(10):
                assert connection.call("echo", b"x", timeout_s=20.0) == b"x"
            connection.close()
            listener.stop(1.0)

    def test_two_at_once_cannot_share(self) -> None:
        with socket.socket() as reservation:
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reservation.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{reservation.getsockname()[1]}"
            outcomes: list[FlightListener | AddressInUse] = []
            start = threading.Barrier(4)

            def listen() -> None:
                start.wait()
                try:
                    outcomes.append(FlightListener(address, EchoHandler(), FAST))
                except AddressInUse as exc:
                    outcomes.append(exc)

            threads = [threading.Thread(target=listen) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            listeners = [outcome for outcome in outcomes if isinstance(outcome, FlightListener)]
            assert len(listeners) == 1
            listeners[0].stop(1.0)

    def test_free_again_after_a_stop(self) -> None:
        first = FlightTransport().listen("127.0.0.1:0", EchoHandler(), FAST)
        first.stop(1.0)
        FlightTransport().listen(first.address, EchoHandler(), FAST).stop(1.0)

    def test_free_again_after_a_kill(self) -> None:
        with task("flight/serve") as server:
            address = server.line()
            connection = FlightTransport().connect(address, FAST)
            connection.open_stream(timeout_s=10.0)
            server.process.kill()
            server.process.wait()
            FlightTransport().listen(address, EchoHandler(), FAST).stop(1.0)
            connection.close()

    def test_not_an_address_of_this_machine(self) -> None:
        # 192.0.2.0/24 is for documentation and nobody's (RFC 5737).
        with pytest.raises(ClusterError, match=r"192\.0\.2\.1 is not an address of this machine"):
            FlightTransport().listen("192.0.2.1:2222", EchoHandler(), FAST)

    def test_a_name_that_nobody_has(self) -> None:
        with pytest.raises(ClusterError, match=r"'no-such-host\.invalid' has no address here"):
            FlightTransport().listen("no-such-host.invalid:2222", EchoHandler(), FAST)

    def test_a_name_that_cannot_be_called(self) -> None:
        connection = FlightTransport().connect("no-such-host.invalid:2222", FAST)
        try:
            with pytest.raises(UnknownHost, match=r"the host name 'no-such-host\.invalid' of .* cannot be resolved"):
                connection.call("status", timeout_s=20.0)
        finally:
            connection.close()

    @pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:70000", "host:-1"])
    def test_no_address(self, address: str) -> None:
        with pytest.raises(ClusterError, match="write host:port"):
            FlightTransport().listen(address, EchoHandler(), FAST)
        with pytest.raises(ClusterError, match="write host:port"):
            FlightTransport().connect(address, FAST)

    @pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "[::1]", "[::]"])
    def test_other_hosts(self, host: str) -> None:
        if "::" in host and not _has_ipv6():
            pytest.skip("this machine has no IPv6")
        listener = FlightTransport().listen(f"{host}:0", EchoHandler(), FAST)
        port = listener.address.rpartition(":")[2]
        assert listener.address == f"{host}:{port}"
        target = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
        connection = FlightTransport().connect(f"{target}:{port}", FAST)
        stream = connection.open_stream(timeout_s=20.0)
        stream.send(b"x")
        while stream.receive(1.0) is None:
            pass
        with pytest.raises(AddressInUse):
            FlightTransport().listen(f"{host}:{port}", EchoHandler(), FAST)
        listener.stop(1.0)
        connection.close()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_web_proxy_does_not_stand_between_tasks(listener: FlightListener) -> None:
    program = (
        "import sys\n"
        "from trainband.wire.flight import FlightTransport\n"
        "from trainband.wire.transport import Timeouts\n"
        "print(FlightTransport().connect(sys.argv[1], Timeouts()).call('echo', b'x', timeout_s=20.0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, listener.address],
        env={**os.environ, "http_proxy": "http://127.0.0.1:1", "no_proxy": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "b'x'\n", done.stderr


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["hangs up", "web server"])
def test_a_process_that_is_no_task_is_not_said_to_be_nobody(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            with contextlib.suppress(OSError):  # the end of the test
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(NoTaskListens, match=rf"a process listens at {address} but does not answer as a task"):
            FlightConnection(address, FAST).call("echo", timeout_s=20.0)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(20.0)
