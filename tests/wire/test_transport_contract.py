"""What every transport promises, whatever carries its bytes."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.descriptors import more_open_than, open_descriptors
from tests.programs import until
from tests.wire.harness import FAST, Wire
from tests.wire.processes import task
from tests.wire.serving import EchoHandler

from trainband.errors import (
    AddressInUse,
    DeadlineExceeded,
    NobodyListens,
    ProtocolError,
    Refused,
    StreamClosed,
    Unreachable,
)
from trainband.launch.ports import ReservedPorts
from trainband.wire.flight import FlightTransport
from trainband.wire.frame import BODY_ALIGNMENT, Frame
from trainband.wire.network import Network
from trainband.wire.transport import ANYBODY, Caller, Stream, Timeouts, Transport


def receive(stream: Stream, deadline_s: float = 20.0) -> Frame:
    """The next frame, however many timeouts that takes."""
    deadline = time.monotonic() + deadline_s
    while (frame := stream.receive(1.0)) is None:
        assert time.monotonic() < deadline, "no frame came"
    return frame


def random_arrays(shapes: list[tuple[int, ...]], dtype: Any = np.float32) -> list[NDArray[Any]]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(shape) * 50).astype(dtype) for shape in shapes]


class TestCalls:
    def test_an_answer_comes_back(self, wire: Wire) -> None:
        assert wire.connection.call("echo", b"\0\xffabc", timeout_s=20.0) == b"\0\xffabc"
        assert wire.connection.call("echo", timeout_s=20.0) == b""

    def test_a_refusal_carries_the_handlers_words_and_no_others(self, wire: Wire) -> None:
        with pytest.raises(Refused) as caught:
            wire.connection.call("refuse", timeout_s=20.0)
        assert str(caught.value) == "no, because of X"

    def test_any_error_of_ours_becomes_a_refusal(self, wire: Wire) -> None:
        with pytest.raises(Refused, match=r"^hidden/kernel differs: float32\[3\] here"):
            wire.connection.call("mismatch", timeout_s=20.0)

    def test_a_very_long_refusal_still_arrives(self, wire: Wire) -> None:
        with pytest.raises(Refused, match="hidden/kernel differs"):
            wire.connection.call("mismatch", b"x" * 100_000, timeout_s=20.0)

    def test_a_defect_is_logged_there_and_only_mentioned_here(
        self, wire: Wire, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(Refused) as caught:
            wire.connection.call("bug", timeout_s=20.0)
        assert "internal error" in str(caught.value)
        assert f"see the log of {wire.listener.address}" in str(caught.value)
        assert "secret" not in str(caught.value)
        assert "a secret of the server" in caplog.text
        assert "Traceback" in caplog.text

    def test_no_answer_in_time(self, wire: Wire) -> None:
        with pytest.raises(DeadlineExceeded, match=r"no answer.* in 0\.2 s"):
            wire.connection.call("wait", timeout_s=0.2)
        wire.handler.finish.set()
        assert wire.connection.call("echo", b"x", timeout_s=20.0) == b"x"

    def test_calls_at_once(self, wire: Wire) -> None:
        answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threads = [
            threading.Thread(
                target=lambda n=n: answers.put(wire.connection.call("echo", str(n).encode(), timeout_s=20.0))
            )
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(int(answers.get()) for _ in threads) == list(range(8))


class TestAddresses:
    def test_nobody_there_and_then_somebody(self, kind: str, transport: Transport) -> None:
        with ReservedPorts(1) as ports:  # lest another test gets the port meanwhile
            (address,) = ports.addresses
            transport.listen(address, EchoHandler(), FAST).stop(1.0)
            connection = transport.connect(address, FAST)
            for _ in range(3):
                with pytest.raises(NobodyListens, match=rf"nothing listens at {address}"):
                    connection.call("echo", timeout_s=20.0)
            with pytest.raises(Unreachable):
                connection.open_stream(timeout_s=20.0)
            second = transport.listen(address, EchoHandler(), FAST)
            # At once: a channel that backs off would go on refusing for a while.
            assert connection.call("echo", b"x", timeout_s=20.0) == b"x", kind
            connection.close()
            second.stop(1.0)

    def test_port_0_gives_the_real_port(self, wire: Wire) -> None:
        host, _, port = wire.listener.address.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0

    def test_an_address_is_served_once(self, wire: Wire) -> None:
        with pytest.raises(AddressInUse, match=f"{wire.listener.address} is taken by another"):
            wire.transport.listen(wire.listener.address, EchoHandler(), FAST)
        assert wire.connection.call("echo", b"x", timeout_s=20.0) == b"x"

    def test_a_stopped_listener_answers_no_more(self, wire: Wire) -> None:
        wire.connection.call("echo", timeout_s=20.0)
        wire.listener.stop(1.0)
        wire.listener.stop(1.0)
        with pytest.raises(Unreachable):
            wire.connection.call("echo", timeout_s=20.0)
        with pytest.raises(Unreachable):
            wire.connection.open_stream(timeout_s=20.0)


_BODIES: list[tuple[str, list[NDArray[Any]]]] = [
    ("float32", random_arrays([(784, 100), (100,), (100, 10), (10,)])),
    ("float64", random_arrays([(3, 5, 7)], np.float64)),
    ("float16", random_arrays([(9,), (2, 2)], np.float16)),
    ("bfloat16", random_arrays([(33, 3), ()], ml_dtypes.bfloat16)),
    ("int8", random_arrays([(5,)], np.int8)),
    ("int64", random_arrays([(5, 4)], np.int64)),
    ("bool", [np.array([[True, False], [False, True]]), np.array(True)]),
    ("scalars", [np.array(1.5), np.array(7, np.int32)]),
    ("empty arrays", [np.empty((0, 3)), np.ones(2), np.empty(0), np.empty((4, 0))]),
    ("empty arrays only", [np.empty((0, 3)), np.empty(0)]),
    ("300 arrays", random_arrays([(n % 17, 3) for n in range(300)])),
    ("large between small", random_arrays([(3,), (200_001,), (5,), (3_000_001,), (7,)])),
    ("many megabytes of small arrays", random_arrays([(100_001,)] * 30)),
    ("10000 arrays", [np.full(2, n, np.float32) for n in range(10_000)]),
]


class TestFrames:
    @pytest.mark.parametrize("body", [body for _, body in _BODIES], ids=[name for name, _ in _BODIES])
    def test_bodies_come_back_as_they_were(self, wire: Wire, body: list[NDArray[Any]]) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        for _ in range(3):
            stream.send(b"a header", body)
            frame = receive(stream)
            assert frame.header == b"a header"
            assert len(frame.body) == len(body)
            for got, sent in zip(frame.body, body, strict=True):
                assert got.dtype == np.uint8
                assert got.ndim == 1
                assert got.ctypes.data % BODY_ALIGNMENT == 0 or got.size == 0
                np.testing.assert_array_equal(got, sent.reshape(-1).view(np.uint8))

    @pytest.mark.parametrize("size", [0, 1, 100, 70_000, 1_000_000])
    def test_header_only(self, wire: Wire, size: int) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        header = np.random.default_rng(1).bytes(size)
        stream.send(header)
        assert receive(stream) == Frame(header, ())

    def test_a_long_header_with_a_body(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        for size in (100_000, 10, 100_001):
            stream.send(b"h" * size, [np.arange(5), np.arange(7)])
            frame = receive(stream)
            assert frame.header == b"h" * size
            np.testing.assert_array_equal(frame.body[1].view(np.int64), np.arange(7))

    def test_bodies_of_changing_size_and_in_order(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        for n in (5, 100_000, 3, 0, 700_000, 1, 700_000):
            stream.send(str(n).encode(), [np.full(n, n, np.int64)] if n else [])
            frame = receive(stream)
            assert frame.header == str(n).encode()
            assert all((array.view(np.int64) == n).all() for array in frame.body)

    @pytest.mark.parametrize("size", [10, 80_000, 1_000_000])
    def test_two_frames_may_be_sent_before_the_first_answer_is_read(self, wire: Wire, size: int) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        for n in (1, 2, 3):
            stream.send(b"first", [np.full(size, n, np.float32)])
            stream.send(b"second", [np.full(size, -n, np.float32)])
            for header, value in ((b"first", n), (b"second", -n)):
                frame = receive(stream)
                assert frame.header == header
                assert (frame.body[0].view(np.float32) == value).all()

    def test_arrays_are_free_for_reuse_when_send_returns(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        body = [np.zeros(3_000_000, np.float32), np.zeros(3, np.float32)]
        for n in range(4):
            for array in body:
                array[:] = n
            stream.send(b"quiet", body)
            for array in body:
                array[:] = -1
        seen: list[Frame] = []
        while len(seen) < 4:
            frame = wire.handler.seen.get(timeout=10.0)
            if frame is not None:
                seen.append(frame)
        assert [{float(x) for array in frame.body for x in np.unique(array.view(np.float32))} for frame in seen] == [
            {0.0},
            {1.0},
            {2.0},
            {3.0},
        ]

    def test_a_body_is_borrowed_until_the_next_receive(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"x", [np.full(1000, 1.0)])
        frame = receive(stream)
        kept = frame.body[0].copy()
        # Not before: the other end may send, but not overwrite.
        stream.send(b"x", [np.full(1000, 2.0)])
        time_to_arrive = wire.connection.call("echo", timeout_s=20.0)
        assert time_to_arrive == b""
        assert (frame.body[0].view(np.float64) == 1.0).all()
        addresses = {frame.body[0].ctypes.data}
        for n in (2.0, 3.0, 4.0, 5.0):
            got = receive(stream).body[0]
            assert (got.view(np.float64) == n).all()
            addresses.add(got.ctypes.data)
            stream.send(b"x", [np.full(1000, n + 1)])
        receive(stream)
        assert len(addresses) <= 2, "memory is used again"
        assert (frame.body[0].view(np.float64) != 1.0).all(), "and what was not copied is overwritten"
        assert (kept.view(np.float64) == 1.0).all()

    def test_views_are_made_once_while_the_sizes_stay(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        seen = set()
        kept = []
        for _ in range(6):
            stream.send(b"x", [np.ones(10), np.ones(1000)])
            body = receive(stream).body
            kept.append(body)
            seen.add(id(body))
        assert len(seen) <= 2

    def test_jax_uses_a_body_without_a_copy(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"x", random_arrays([(3,), (100, 7), (11,)]))
        cpu = jax.devices("cpu")[0]
        for view in receive(stream).body:
            # Not jnp.asarray: since JAX 0.10 that always copies NumPy's memory.
            array = jax.device_put(view.view(np.float32), cpu, may_alias=True)
            assert array.unsafe_buffer_pointer() == view.ctypes.data

    def test_streams_at_once(self, wire: Wire) -> None:
        failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

        def work(n: int) -> None:
            try:
                stream = wire.connection.open_stream(timeout_s=20.0)
                for step in range(20):
                    stream.send(b"x", [np.full(5000, n * 100 + step)])
                    assert (receive(stream).body[0].view(np.int64) == n * 100 + step).all()
                stream.close()
            except BaseException as exc:
                failures.put(exc)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures.empty(), failures.get()

    def test_one_thread_sends_while_another_receives(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        body = np.zeros(50_000)

        def send_all() -> None:
            for n in range(50):
                body[:] = n
                stream.send(str(n).encode(), [body])

        sender = threading.Thread(target=send_all)
        sender.start()
        for n in range(50):
            frame = receive(stream)
            assert frame.header == str(n).encode()
            assert (frame.body[0].view(np.float64) == n).all()
        sender.join()

    def test_who_is_there(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        assert stream.peer == wire.listener.address
        assert stream.transport == wire.streams_in
        assert wire.connection.address == wire.listener.address


class TestWaiting:
    def test_a_timeout_gives_none_and_the_stream_stays_usable(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        for n in range(3):
            start = time.monotonic()
            assert stream.receive(0.02) is None
            assert time.monotonic() - start >= 0.02
            stream.send(b"x", [np.full(100, n)])
            assert (receive(stream).body[0].view(np.int64) == n).all()

    def test_a_handler_times_out_too(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        assert wire.handler.seen.get(timeout=20.0) is None
        stream.send(b"x")
        assert receive(stream).header == b"x"

    def test_a_frame_ends_a_wait(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"gate")
        assert receive(stream).header == b"entered"
        stream.send(b"x")
        threading.Timer(0.05, wire.handler.finish.set).start()
        assert receive(stream).header == b"x"


class TestLimits:
    def test_a_frame_larger_than_expected_ends_the_stream(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"echo", [np.zeros(1000, np.uint8)])
        assert receive(stream).header == b"echo"
        stream.most_bytes = 999
        stream.send(b"echo", [np.zeros(1000, np.uint8)])
        with pytest.raises(ProtocolError, match="a frame of 1,000 bytes, but 999 is the limit"):
            receive(stream)
        with pytest.raises((ProtocolError, StreamClosed)):
            receive(stream)


class TestEnds:
    def test_the_client_closes(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"quiet", [np.ones(10)])
        stream.close()
        stream.close()
        assert "closed the stream" in str(wire.handler.ended.get(timeout=20.0))
        frames = []
        while not wire.handler.seen.empty():
            frame = wire.handler.seen.get()
            if frame is not None:
                frames.append(frame)
        assert len(frames) == 1, "what was sent before is received"
        with pytest.raises(StreamClosed, match="closed at this end"):
            stream.send(b"x")
        with pytest.raises(StreamClosed, match="closed at this end"):
            stream.receive(0.1)

    def test_another_thread_ends_a_wait(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"quiet")
        waiting: Future[Exception | None] = Future()

        def wait() -> None:
            try:
                while stream.receive(0.1) is None:
                    pass
                waiting.set_result(None)
            except Exception as exc:
                waiting.set_result(exc)

        thread = threading.Thread(target=wait)
        thread.start()
        with pytest.raises(FutureTimeoutError):
            waiting.result(0.3)
        stream.interrupt()
        assert isinstance(waiting.result(20.0), StreamClosed)
        thread.join(20.0)
        with pytest.raises(StreamClosed):
            stream.send(b"x")
        stream.close()

    def test_the_handler_closes(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"last", [np.arange(4)])
        stream.send(b"bye")
        frame = receive(stream)
        assert frame.header == b"last"
        for _ in range(2):
            with pytest.raises(StreamClosed, match=f"{wire.listener.address} closed the stream"):
                receive(stream)

    @pytest.mark.parametrize(
        ("header", "reason"), [(b"fail", "this worker's lease has run out"), (b"bug", "see the log of")]
    )
    def test_the_handler_fails(self, wire: Wire, header: bytes, reason: str) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(header)
        with pytest.raises(StreamClosed, match=reason) as caught:
            receive(stream)
        assert "secret" not in str(caught.value)

    def test_whether_the_other_end_is_alive(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        assert stream.alive
        stream.send(b"bye")
        with pytest.raises(StreamClosed):
            receive(stream)
        assert not stream.alive

    def test_a_close_is_noticed_by_the_next_receive(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"bye")
        with pytest.raises(StreamClosed):
            receive(stream)
        with pytest.raises(StreamClosed):
            stream.send(b"x")

    @pytest.mark.parametrize("size", [100_000, 1_000_000])
    def test_sending_to_one_that_has_closed(self, wire: Wire, size: int) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"bye")

        def fails() -> bool:
            try:
                stream.send(b"quiet", [np.ones(size)])
            except StreamClosed:
                return True
            return False

        until(fails, "the sender's notice of the end")
        with pytest.raises(StreamClosed):
            receive(stream)
        with pytest.raises(StreamClosed):
            stream.send(b"x")

    @pytest.mark.parametrize("unread", [0, 2])
    @pytest.mark.parametrize("size", [0, 100_000])
    def test_a_refusal_is_told_to_one_that_only_sends(self, wire: Wire, unread: int, size: int) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        for _ in range(unread):
            stream.send(b"an answer that nobody has read yet")
        stream.send(b"fail")
        until(lambda: not wire.handler.streams, "the handler's end")

        def go_on() -> None:
            for _ in range(50):  # some of which may be on their way as the other end goes
                stream.send(b"quiet", [np.ones(size)] if size else [])
            while True:
                receive(stream)

        with pytest.raises(StreamClosed) as caught:
            go_on()
        assert str(caught.value) == f"{wire.listener.address} closed the stream: this worker's lease has run out"

    @pytest.mark.parametrize("size", [0, 1000])
    def test_an_answer_is_received_after_a_send_that_failed(self, wire: Wire, size: int) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"answer", [np.ones(size, np.uint8)])
        stream.send(b"fail")
        until(lambda: not wire.handler.streams, "the handler's end")

        def fails() -> bool:
            try:
                stream.send(b"quiet", [np.ones(1_000_000)])
            except StreamClosed:
                return True
            return False

        until(fails, "the sender's notice of the end")
        answers: list[Frame] = []

        def receive_all() -> None:
            while True:
                answers.append(receive(stream))

        with pytest.raises(StreamClosed, match="closed the stream: this worker's lease has run out"):
            receive_all()
        if answers or wire.streams_in != "flight":  # Arrow may drop what has arrived as soon as sending fails
            (frame,) = answers
            assert frame.header == b"answer"
            assert np.array_equal(frame.body[0], np.ones(size, np.uint8))

    def test_one_that_refuses_more_has_all_that_was_sent_before(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"gate")
        assert receive(stream).header == b"entered"
        stream.send(b"quiet", [np.full(1000, 7.0)])
        (theirs,) = wire.handler.streams
        assert theirs.outlives_sender == stream.outlives_sender == (wire.streams_in in ("memory", "shared memory"))
        theirs.refuse_more()
        if stream.outlives_sender:
            with pytest.raises(StreamClosed):
                stream.send(b"quiet", [np.full(1000, 8.0)])
            with pytest.raises(StreamClosed):
                stream.send(b"quiet")
        wire.handler.finish.set()
        assert isinstance(wire.handler.ended.get(timeout=20.0), StreamClosed)
        seen = [] if wire.handler.seen.empty() else [wire.handler.seen.get()]
        assert wire.handler.seen.empty()
        if stream.outlives_sender:
            assert [frame.body[0].view(np.float64)[0] for frame in seen if frame is not None] == [7.0]
        with pytest.raises(StreamClosed):
            receive(stream)

    def test_close_ends_a_wait_in_another_thread(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        ended: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

        def wait() -> None:
            try:
                receive(stream, 20.0)
            except BaseException as exc:
                ended.put(exc)

        waiter = threading.Thread(target=wait)
        waiter.start()
        stream.close()
        waiter.join(20.0)
        assert isinstance(ended.get(timeout=20.0), StreamClosed)

    def test_closing_the_connection_closes_its_streams(self, wire: Wire) -> None:
        streams = [wire.connection.open_stream(timeout_s=20.0) for _ in range(3)]
        wire.connection.close()
        wire.connection.close()
        for _ in streams:
            assert isinstance(wire.handler.ended.get(timeout=20.0), StreamClosed)
        for stream in streams:
            with pytest.raises(StreamClosed):
                stream.send(b"x")

    def test_stop_ends_idle_streams_at_once(self, wire: Wire) -> None:
        streams = [wire.connection.open_stream(timeout_s=20.0) for _ in range(3)]
        for stream in streams:
            stream.send(b"x")
            receive(stream)
        wire.listener.stop(600.0)  # not after this grace
        for stream in streams:
            with pytest.raises(StreamClosed):
                receive(stream)

    def test_stop_cuts_a_busy_stream_after_the_grace(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"gate")
        assert receive(stream).header == b"entered"
        wire.listener.stop(0.5)
        assert wire.handler.streams, "it has not waited for the handler"
        with pytest.raises(StreamClosed):
            receive(stream)
        wire.handler.finish.set()

    def test_stop_lets_a_frame_in_work_be_answered(self, wire: Wire) -> None:
        stream = wire.connection.open_stream(timeout_s=20.0)
        stream.send(b"gate")
        assert receive(stream).header == b"entered"
        stream.send(b"x", [np.arange(3)])
        stopper = threading.Thread(target=wire.listener.stop, args=(5.0,))
        stopper.start()
        wire.handler.finish.set()
        frame = receive(stream)
        assert frame.header == b"x"
        stopper.join()

    def test_nothing_is_left_open(self, kind: str, transport: Transport) -> None:
        def once() -> None:
            listener = transport.listen("127.0.0.1:0", EchoHandler(), FAST)
            connection = transport.connect(listener.address, FAST)
            stream = connection.open_stream(timeout_s=20.0)
            for size in (10, 1_000_000):
                stream.send(b"x", [np.ones(size)])
                receive(stream)
            connection.close()
            listener.stop(2.0)

        once()  # whatever the first use opens for good
        before = len(open_descriptors())
        for _ in range(3):
            once()
        until(lambda: not more_open_than(before), f"the end of every socket and segment of {kind}")


_REAL: list[tuple[str, Callable[[], Transport]]] = [
    ("flight", FlightTransport),
    ("network", Network),
    ("ucx", lambda: Network("ucx")),
]


@pytest.mark.parametrize(("mode", "make"), _REAL, ids=[name for name, _ in _REAL])
class TestProcesses:
    def test_a_listener_that_is_killed(self, mode: str, make: Callable[[], Transport]) -> None:
        with task(f"{mode}/serve") as server:
            connection = make().connect(server.line(), FAST)
            stream = connection.open_stream(timeout_s=10.0)
            stream.send(b"x", [np.ones(100_000)])
            assert receive(stream).header == b"x"
            server.process.send_signal(signal.SIGKILL)
            with pytest.raises(StreamClosed):
                receive(stream)
            with pytest.raises(Unreachable):
                connection.call("echo", timeout_s=20.0)
            connection.close()

    def test_a_client_that_is_killed(self, mode: str, make: Callable[[], Transport]) -> None:
        handler = EchoHandler()
        listener = make().listen("127.0.0.1:0", handler, FAST)
        with task(f"{mode}/hold", listener.address) as client:
            assert client.line() == "open"
            client.process.send_signal(signal.SIGKILL)
            assert isinstance(handler.ended.get(timeout=10.0), StreamClosed)
        listener.stop(2.0)

    def test_stop_does_not_wait_for_a_client_that_stands_still(self, mode: str, make: Callable[[], Transport]) -> None:
        with task(f"{mode}/stop") as server:
            address = server.line()
            with task(f"{mode}/hold", address) as client:
                assert client.line() == "open"
                client.process.send_signal(signal.SIGSTOP)
                server.say("stop now")
                assert server.line() == "stopped"
                status, errors = server.wait(20.0)
        assert (status, errors) == (0, ""), make

    def test_a_task_ends_though_a_handler_does_not(self, mode: str, make: Callable[[], Transport]) -> None:
        with task(f"{mode}/stop") as server:
            connection = make().connect(server.line(), FAST)
            stream = connection.open_stream(timeout_s=10.0)
            stream.send(b"gate")
            assert receive(stream).header == b"entered"
            server.say("stop now")
            assert server.line() == "stopped"
            status, errors = server.wait(20.0)
            connection.close()
        assert (status, errors) == (0, "")

    def test_an_interrupt_ends_a_wait(self, mode: str, make: Callable[[], Transport]) -> None:
        listener = make().listen("127.0.0.1:0", EchoHandler(), FAST)
        with task(f"{mode}/interrupt", listener.address) as client:
            assert client.line() == "open"
            client.process.send_signal(signal.SIGINT)
            assert client.line() == "interrupted"
            status, errors = client.wait(20.0)
        listener.stop(2.0)
        assert (status, errors) == (0, "")

    def test_a_client_that_stands_still_takes_nothing(self, mode: str, make: Callable[[], Transport]) -> None:
        failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

        class Sender(EchoHandler):
            def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:  # noqa: ARG002 - the seam has it
                receive(stream)
                stream.send(b"welcome")
                body = np.zeros(1_000_000, np.uint8)
                self.finish.wait(30.0)
                try:
                    for _ in range(1000):
                        stream.send(b"x", [body])
                except DeadlineExceeded as exc:
                    failures.put(exc)
                    raise

        handler = Sender()
        short = Timeouts(heartbeat_s=0.1, stall_s=2.0)
        listener = make().listen("127.0.0.1:0", handler, short)
        with task(f"{mode}/hold", listener.address) as client:
            assert client.line() == "open"
            client.process.send_signal(signal.SIGSTOP)
            handler.finish.set()
            assert "has taken nothing from its stream for 2.0 s" in str(failures.get(timeout=20.0))
        listener.stop(1.0)

    def test_a_task_ends_with_streams_open_and_its_listener_not_stopped(
        self, mode: str, make: Callable[[], Transport]
    ) -> None:
        with task(f"{mode}/exit") as server:
            connection = make().connect(server.line(), FAST)
            stream = connection.open_stream(timeout_s=10.0)
            server.say("exit now")
            status, errors = server.wait(20.0)
            with pytest.raises(StreamClosed):
                receive(stream)
            connection.close()
        assert (status, errors) == (0, "")

    @pytest.mark.slow
    def test_more_than_two_gigabytes(self, mode: str, make: Callable[[], Transport]) -> None:
        class Sum(EchoHandler):
            def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:  # noqa: ARG002 - the seam has it
                while True:
                    frame = stream.receive(1.0)
                    if frame is not None:
                        body = frame.body[1]
                        stream.send(b"%d %d %d" % (body.size, body[-1], np.count_nonzero(body[:: 1 << 20])))

        listener = make().listen("127.0.0.1:0", Sum(), FAST)
        connection = make().connect(listener.address, FAST)
        stream = connection.open_stream(timeout_s=10.0)
        size = 2_200_000_000
        body = np.zeros(size, np.uint8)
        body[-1] = 7
        stream.send(b"x", [np.ones(3, np.uint8), body])
        assert receive(stream, 60.0).header == b"%d 7 0" % size
        connection.close()
        listener.stop(2.0)
        assert mode
