"""Fuzz targets of what carries messages: packets of shared memory, frames over Flight, and the proofs of who calls.

Each `fuzz_*` takes bytes. What a target lets escape is a bug.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
from typing import Any

import numpy as np
import pyarrow as pa

from trainband.cluster.certificate_files import read_uri
from trainband.cluster.identity import Identity
from trainband.errors import ClusterError, PeerError, StreamClosed, TrainbandError
from trainband.wire.flight.outbox import BODY_SCHEMA
from trainband.wire.flight.stream import ExchangeStream
from trainband.wire.messages.codec import decode, encode
from trainband.wire.security import handshake
from trainband.wire.security.handshake import ClientSide, HelloRequest, ListenerSide, Prove, Proved
from trainband.wire.shared_memory.stream import SharedMemoryStream
from trainband.wire.transport import Timeouts

_SECRET = b"s" * 32
_PEER = "10.0.0.9:40000"
_QUICK = Timeouts(connect_s=0.5, call_s=0.5, stall_s=0.5, grace_s=0.1)
_LOCAL = struct.Struct("<BBHIIxxxxQ")
_FLIGHT = struct.Struct("<BBxxIIIQQ")


class _Bytes:
    """Takes numbers from the front of bytes; 0 where there are none left."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, size: int) -> int:
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little")

    def rest(self) -> bytes:
        return self._data[self._at :]


def _segment(size: int, *, seal: bool) -> int:
    descriptor = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if seal:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def fuzz_packet(data: bytes) -> None:
    """Some packets of a shared-memory stream: their prefixes, sizes and descriptors are what the bytes say."""
    source = _Bytes(data)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stream = SharedMemoryStream(ours, "fuzz", _QUICK, lambda _: None)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - descriptors
    try:
        for _ in range(1 + source.number(1) % 4):
            choice = source.number(1)
            arrays = source.number(1) % 4 if choice & 1 else source.number(4)
            header_size = source.number(1) if choice & 2 else source.number(4)
            kind, number = (2 if choice & 4 else source.number(1)), source.number(1) % (3 if choice & 8 else 256)
            prefix = _LOCAL.pack(kind, number, source.number(1) % 4, header_size, arrays, source.number(choice % 8))
            sizes = b"".join(struct.pack("<Q", source.number(2 if choice & 16 else 8)) for _ in range(min(arrays, 4)))
            tail = source.rest()[: header_size % 4096] + sizes
            descriptors = []
            if choice & 32:
                size = mmap.PAGESIZE * (1 + source.number(1) % 3) + source.number(1)
                descriptors = [_segment(size, seal=choice & 64 == 0), os.eventfd(0, os.EFD_CLOEXEC)]
                descriptors = descriptors[: 1 + source.number(1) % 2]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
            theirs.sendmsg(
                [(prefix + tail)[: None if choice & 128 else source.number(1)]], rights if descriptors else []
            )
            for descriptor in descriptors:
                os.close(descriptor)
            frame = stream.receive(0.0)
            for array in frame.body if frame is not None else ():
                array.sum()  # the memory is there
    except (PeerError, OSError) as exc:
        if not isinstance(exc, PeerError | BrokenPipeError):
            raise
    finally:
        theirs.close()
        stream.close()
        assert len(os.listdir("/proc/self/fd")) <= before, "a descriptor is left"  # noqa: PTH208


class _Chunk:
    def __init__(self, metadata: bytes | None, data: Any) -> None:
        self.app_metadata = None if metadata is None else pa.py_buffer(metadata)
        self.data = data


class _Reader:
    """Gives what a peer might have sent over Flight."""

    def __init__(self, source: _Bytes) -> None:
        self._source = source
        self._left = 1 + source.number(1) % 5

    def read_chunk(self) -> _Chunk:
        source = self._source
        if self._left == 0:
            raise StopIteration
        self._left -= 1
        choice = source.number(1)
        arrays = source.number(1) % 4 if choice & 1 else source.number(4)
        header_size = source.number(1) % 16 if choice & 2 else source.number(4)
        messages = source.number(1) % 4 if choice & 4 else source.number(4)
        offset = source.number(1) if choice & 8 else source.number(8)
        kind = 1 + source.number(1) % 4 if choice & 16 else source.number(1)
        metadata = _FLIGHT.pack(kind, source.number(1), header_size, arrays, messages, offset, source.number(8))
        sizes = [source.number(2 if choice & 32 else 8) for _ in range(min(arrays, 4))]
        metadata += b"h" * (header_size % 64) + b"".join(struct.pack("<Q", size) for size in sizes)
        if choice & 64:
            metadata = metadata[: source.number(1)]
        if choice & 128:
            return _Chunk(metadata, None)
        body = np.zeros(min(sum(sizes), 1 << 16) or source.number(1), np.uint8)
        return _Chunk(metadata, pa.RecordBatch.from_arrays([pa.array(body)], schema=BODY_SCHEMA))


class _Writer:
    def write_metadata(self, _: Any) -> None: ...

    def write_with_metadata(self, *_: Any) -> None: ...


def fuzz_frames(data: bytes) -> None:
    """Some messages of a stream over Flight."""
    source = _Bytes(data)
    stream = ExchangeStream(
        _Reader(source),
        _Writer(),
        peer="fuzz",
        timeouts=_QUICK,
        abort=lambda: None,
        translate=lambda exc: StreamClosed(str(exc)),
    )
    stream.most_bytes = 1 << 20
    with contextlib.suppress(PeerError):
        for _ in range(8):
            frame = stream.receive(0.0)
            for array in frame.body if frame is not None else ():
                assert array.nbytes <= 1 << 20, "more memory than came"


_now = 0.0
_listener = ListenerSide(_SECRET, Identity("ps:0", "ps"), lambda: _now)


def _client() -> ClientSide:
    client = ClientSide(_SECRET, Identity("worker:0", "worker"), "10.0.0.7:2222")
    session = _listener.prove(client.prove(_listener.hello(client.request)), _PEER)
    client.start_session(Proved(session=session.number))
    return client


_friend = _client()


def _with_changes(valid: bytes, data: bytes) -> bytes:
    """Bytes with some of them changed, as other bytes say; or the other bytes themselves."""
    if len(data) < 3:
        return data
    changed = bytearray(valid)
    for place, value in zip(data[0::3], data[1::3], strict=False):
        changed[place * len(changed) // 256] ^= value
    return bytes(changed[: len(changed) - data[-1] % 8])


def fuzz_greeting(data: bytes) -> None:
    """A question, and a proof, of somebody who does not know the secret."""
    for kind, valid in ((HelloRequest, encode(_friend.request)), (Prove, _proof())):
        with contextlib.suppress(TrainbandError):
            record: Any = decode(_with_changes(valid, data), kind, "fuzz")
            if isinstance(record, HelloRequest):
                _listener.hello(record)
            elif record != decode(valid, kind, "fuzz"):
                _listener.prove(record, "10.6.6.6:1")
                raise AssertionError("a proof that was changed counts")
    assert len(_listener._sessions) <= 3, "strangers have sessions"  # noqa: SLF001


def _proof() -> bytes:
    client = ClientSide(_SECRET, Identity("worker:1", "x"), "10.0.0.7:2222")
    return encode(client.prove(_listener.hello(client.request)))


def fuzz_seal(data: bytes) -> None:
    """A sealed call with changes: whoever changes one is refused."""
    _, sealed = _friend.seal("status", b"body")
    changed = _with_changes(sealed, data)
    try:
        _listener.open("status", changed, _PEER)
    except TrainbandError:
        return
    assert changed == sealed, "a call that was changed counts"


def fuzz_ticket(data: bytes) -> None:
    """What opens a stream, from somebody who has none."""
    with contextlib.suppress(TrainbandError):
        _listener.open(handshake.STREAM, data, None)
        raise AssertionError("a made-up ticket counts")


def fuzz_certificate_name(data: bytes) -> None:
    """The name in a certificate."""
    text = data.decode("utf-8", "replace")
    for uri in (text, f"trainband://{text}", f"trainband://worker/0?serial={text}"):
        with contextlib.suppress(ClusterError):
            assert read_uri(uri).identity.roles
