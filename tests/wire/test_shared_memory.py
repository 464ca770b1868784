"""What is particular to shared memory between processes of one machine."""

from __future__ import annotations

import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests.descriptors import open_descriptors
from tests.programs import until
from tests.wire.harness import FAST
from tests.wire.processes import task
from tests.wire.serving import EchoHandler

from trainband.errors import DeadlineExceeded, ProtocolError, StreamClosed, Unreachable
from trainband.wire.frame import Frame
from trainband.wire.network import Network
from trainband.wire.shared_memory import listener as listening
from trainband.wire.shared_memory import stream as streams
from trainband.wire.shared_memory.listener import SharedMemoryListener, open_shared_memory_stream
from trainband.wire.shared_memory.stream import SharedMemoryStream
from trainband.wire.transport import Timeouts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory is for Linux only")

_SHORT = Timeouts(heartbeat_s=0.1, stall_s=0.3)


def pair(timeouts: Timeouts = FAST) -> tuple[SharedMemoryStream, SharedMemoryStream]:
    """Two ends in one thread: nothing here may wait for the other."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return (
        SharedMemoryStream(ours, "the right", timeouts, lambda _: None),
        SharedMemoryStream(theirs, "the left", timeouts, lambda _: None),
    )


@pytest.fixture
def ends() -> Iterator[tuple[SharedMemoryStream, SharedMemoryStream]]:
    ends = pair(_SHORT)
    yield ends
    for end in ends:
        end.close()


def received(stream: SharedMemoryStream) -> Frame:
    frame = stream.receive(10.0)
    assert frame is not None
    return frame


class TestLoans:
    def test_send_send_receive_receive_in_one_thread(self, ends: tuple[SharedMemoryStream, SharedMemoryStream]) -> None:
        left, right = ends
        for n in range(5):
            for k in (0, 1):
                left.send(b"x", [np.full(100_000, 2 * n + k)])
            for k in (0, 1):
                assert (received(right).body[0].view(np.int64) == 2 * n + k).all()
            assert right.receive(0.0) is None

    def test_a_third_body_waits_and_gives_up(self, ends: tuple[SharedMemoryStream, SharedMemoryStream]) -> None:
        left, right = ends
        left.send(b"1", [np.ones(10)])
        left.send(b"2", [np.ones(10)])
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"the right has taken nothing from its stream for 0\.3 s"):
            left.send(b"3", [np.ones(10)])
        assert time.monotonic() - start >= 0.3
        assert received(right).header == b"1"
        assert received(right).header == b"2"
        left.send(b"3", [np.ones(10)])
        assert received(right).header == b"3", "nothing was lost by waiting in vain"

    def test_a_waiting_sender_is_woken(self) -> None:
        left, right = pair()
        for _ in range(2):
            left.send(b"x", [np.ones(10)])
        sender = threading.Thread(target=left.send, args=(b"last", [np.full(10, 5.0)]))
        sender.start()
        for _ in range(2):
            received(right)
        assert received(right).header == b"last"
        sender.join(20.0)
        assert not sender.is_alive()
        left.close()
        right.close()

    def test_headers_do_not_wait_for_bodies(self, ends: tuple[SharedMemoryStream, SharedMemoryStream]) -> None:
        left, right = ends
        for _ in range(2):
            left.send(b"body", [np.ones(10)])
        for n in range(20):
            left.send(b"%d" % n)
        assert [received(right).header for _ in range(22)] == [b"body"] * 2 + [b"%d" % n for n in range(20)]

    def test_a_lockstep_needs_one_place_where_the_body_was_given_back(
        self, ends: tuple[SharedMemoryStream, SharedMemoryStream]
    ) -> None:
        left, right = ends
        places = set()
        for _ in range(5):
            left.send(b"x", [np.ones(1000)])
            places.add(received(right).body[0].ctypes.data)
            assert right.receive(0.0) is None  # as a server does that waits for the next one
        assert len(places) == 1

    @pytest.mark.parametrize("patience_s", [20.0, 0.1])
    def test_a_large_body_waits_a_while_for_the_place_of_the_last_one(
        self, ends: tuple[SharedMemoryStream, SharedMemoryStream], patience_s: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body = np.ones(1000)
        monkeypatch.setattr(streams, "_LARGE", body.nbytes)
        monkeypatch.setattr(streams, "_S_PER_NEW_BYTE", patience_s / body.nbytes)
        left, right = ends
        left.send(b"first", [body])
        first = received(right).body[0].ctypes.data
        sending = threading.Thread(target=left.send, args=(b"second", [body]))
        sending.start()
        if patience_s == 0.1:  # the first body is not given back meanwhile
            sending.join()
        places = {first, received(right).body[0].ctypes.data}
        sending.join()
        assert len(places) == (2 if patience_s == 0.1 else 1)

    def test_a_kept_view_of_an_outgrown_segment_stays_readable(
        self, ends: tuple[SharedMemoryStream, SharedMemoryStream]
    ) -> None:
        left, right = ends
        left.send(b"x", [np.full(100, 3.0)])
        kept = received(right).body[0]
        assert right.receive(0.0) is None
        for size in (1_000_000, 2_000_000):
            left.send(b"x", [np.ones(size)])
            received(right)
        left.close()
        right.close()
        assert (kept.view(np.float64) == 3.0).all()

    def test_what_was_sent_outlives_its_sender(self, ends: tuple[SharedMemoryStream, SharedMemoryStream]) -> None:
        left, right = ends
        right.send(b"unread")
        left.send(b"x", [np.arange(1000)])
        left.close()
        np.testing.assert_array_equal(received(right).body[0].view(np.int64), np.arange(1000))
        with pytest.raises(StreamClosed, match="the left closed the stream"):
            right.receive(1.0)
        with pytest.raises(StreamClosed):
            right.send(b"x")


class TestNonsense:
    @pytest.mark.parametrize(
        "packet",
        [
            b"x",
            streams._PREFIX.pack(99, 0, 0, 0, 0, 0),  # noqa: SLF001
            streams._PREFIX.pack(streams._FRAME, 7, 0, 0, 0, 0),  # noqa: SLF001
            streams._PREFIX.pack(streams._FRAME, 0, 0, 50, 0, 0),  # noqa: SLF001
            streams._PREFIX.pack(streams._FRAME, 0, 0, 0, 1, 1) + struct.pack("<Q", 10),  # noqa: SLF001
            streams._PREFIX.pack(streams._FRAME, 0, streams._NEW_SEGMENT, 0, 1, 1) + struct.pack("<Q", 10),  # noqa: SLF001
        ],
    )
    def test_a_packet_that_is_not_ours(self, packet: bytes) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stream = SharedMemoryStream(ours, "somebody", FAST, lambda _: None)
        theirs.send(packet)
        with pytest.raises(ProtocolError, match="somebody sent a frame that contradicts itself"):
            stream.receive(1.0)
        stream.close()
        theirs.close()

    def test_descriptors_that_are_no_segment_or_no_doorbell(self) -> None:
        """A doorbell that waits for its reader would stop whoever gives a body back."""
        before = open_descriptors()
        reader, writer = os.pipe()
        memory, blocking, bell = os.memfd_create("test"), os.eventfd(0), os.eventfd(0, os.EFD_NONBLOCK)
        for descriptors in ([memory, writer], [memory, blocking], [reader, bell], [memory, bell]):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stream = SharedMemoryStream(ours, "somebody", FAST, lambda _: None)
            packet = streams._PREFIX.pack(streams._FRAME, 0, streams._NEW_SEGMENT, 0, 1, 1)  # noqa: SLF001
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", *descriptors))]
            theirs.sendmsg([packet, struct.pack("<Q", 10)], rights)
            with pytest.raises(ProtocolError, match="somebody sent a frame that contradicts itself"):
                stream.receive(1.0)
            stream.close()
            theirs.close()
        for descriptor in (reader, writer, memory, blocking, bell):
            os.close(descriptor)
        assert open_descriptors() == before

    @pytest.mark.parametrize("sealed", [False, True])
    def test_memory_that_is_too_small_or_may_shrink(self, sealed: bool) -> None:
        import fcntl

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stream = SharedMemoryStream(ours, "somebody", FAST, lambda _: None)
        before = open_descriptors()
        memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, 8192)
        if sealed:
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        packet = streams._PREFIX.pack(streams._FRAME, 0, streams._NEW_SEGMENT, 0, 1, 1) + struct.pack("<Q", 10_000)  # noqa: SLF001
        socket.send_fds(theirs, [packet], [memory, memory])
        os.close(memory)
        with pytest.raises(ProtocolError):
            stream.receive(1.0)
        stream.close()
        theirs.close()
        del stream  # with its error, whose traceback holds the segment
        assert open_descriptors() <= before


class TestDoors:
    def test_no_door(self) -> None:
        with pytest.raises(Unreachable, match=r"10\.0\.0\.7:1 is not on this machine"):
            open_shared_memory_stream("trainband/nobody", "10.0.0.7:1", FAST, 1.0, lambda _: None)

    def test_a_door_that_does_not_open(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
            mute.bind("\0trainband/mute")
            mute.listen()
            with pytest.raises(DeadlineExceeded, match=r"did not open a stream in 0\.2 s"):
                open_shared_memory_stream("trainband/mute", "10.0.0.7:1", FAST, 0.2, lambda _: None)

    def test_another_user_is_not_let_in_and_takes_the_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        network = Network()
        listener = network.listen("127.0.0.1:0", EchoHandler(), FAST)
        connection = network.connect(listener.address, FAST)
        real = listening._may_talk  # noqa: SLF001
        seen: queue.SimpleQueue[bool] = queue.SimpleQueue()
        monkeypatch.setattr(os, "geteuid", lambda: 12345)

        def judge(_peer: socket.socket) -> bool:
            raw = struct.pack("3i", os.getpid(), 54321, 54321)

            class Stranger:
                def getsockopt(self, *_: int) -> bytes:
                    return raw

            seen.put(real(Stranger()))  # type: ignore[arg-type]
            return False

        monkeypatch.setattr(listening, "_may_talk", judge)
        stream = connection.open_stream(timeout_s=20.0)
        assert stream.transport == "ucx: tcp"
        assert seen.get(timeout=20.0) is False
        connection.close()
        listener.stop(2.0)

    def test_a_listener_without_shared_memory_is_reached_by_the_network(self) -> None:
        listener = Network("flight").listen("127.0.0.1:0", EchoHandler(), FAST)
        connection = Network().connect(listener.address, FAST)
        assert connection.open_stream(timeout_s=20.0).transport == "flight"
        connection.close()
        listener.stop(2.0)

    def test_a_stop_leaves_no_door_behind(self) -> None:
        listener = SharedMemoryListener(EchoHandler(), FAST)
        listener.stop(1.0)
        with pytest.raises(Unreachable):
            open_shared_memory_stream(listener.name, "x:1", FAST, 1.0, lambda _: None)


def test_what_was_sent_outlives_a_sender_that_is_killed() -> None:
    handler = EchoHandler()
    listener = Network().listen("127.0.0.1:0", handler, FAST)
    with task("network/burst", listener.address) as client:
        assert client.line() == "sent"  # while the handler has read nothing of it
        client.process.send_signal(signal.SIGKILL)
        client.process.wait(10.0)
        handler.finish.set()
        assert isinstance(handler.ended.get(timeout=10.0), StreamClosed)
    frames = []
    while not handler.seen.empty():
        frames.append(handler.seen.get())
    values = [frame.body[0].view(np.float64) for frame in frames if frame is not None]
    assert [(value.min(), value.max(), value.size) for value in values] == [(1.0, 1.0, 50_000), (2.0, 2.0, 50_000)]
    listener.stop(2.0)


def test_nothing_of_a_killed_sender_is_left() -> None:
    def leftovers() -> list[str]:
        return [name for name in os.listdir("/dev/shm") if "trainband" in name]  # noqa: PTH208

    handler = EchoHandler()
    listener = Network().listen("127.0.0.1:0", handler, FAST)
    with task("network/hold", listener.address) as client:
        assert client.line() == "open"
        with open("/proc/self/maps") as maps:  # noqa: PTH123
            assert "memfd:trainband" in maps.read()
        client.process.send_signal(signal.SIGKILL)
        assert isinstance(handler.ended.get(timeout=20.0), StreamClosed)
    listener.stop(2.0)

    def unmapped() -> bool:
        import gc

        gc.collect()
        with open("/proc/self/maps") as maps:  # noqa: PTH123
            return "memfd:trainband" not in maps.read()

    until(unmapped, "the end of the mapping")
    assert leftovers() == []


def test_a_stream_costs_no_copy_at_the_receiver() -> None:
    left, right = pair()
    left.send(b"x", [np.zeros(100)])
    first = received(right)
    assert first.body[0].base is not None
    # Written by the sender into memory that the receiver already sees.
    segment = left._out._slots[0].segment  # noqa: SLF001
    assert segment is not None
    segment.body[:800].view(np.float64)[:] = 9.0
    assert (first.body[0].view(np.float64) == 9.0).all()
    left.close()
    right.close()
