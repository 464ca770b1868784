"""One stream's worker and endpoint, and how its threads wait."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import select
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_void_p

from trainband.wire.ucx import library
from trainband.wire.ucx.context import UcxContext
from trainband.wire.ucx.library import EndpointAttributes, OnError, RequestParam, TagInfo, TransportEntry

logger = logging.getLogger(__name__)

_EVERY_BIT = (1 << 64) - 1
_ERRORS_FROM = (1 << 64) - 100
"""Pointers from here on are negative statuses (`UCS_PTR_IS_ERR`)."""
_MOST_LANES = 16
_MOST_STRAYS = 16
"""Number of messages without the stream's key that end it. UCX keeps each until it is received, and searches them
all for each message of the stream: a few thousand bring a stream to a standstill."""
_STRAYS_EVERY = 8
"""Rounds of UCX's work between two checks for such messages, each of which costs 1 us."""

KINDS = 8
"""Bits of a tag for the kind of message; the others are the stream's key."""
KEY_MASK = _EVERY_BIT >> KINDS << KINDS

_CONTIGUOUS, _SCATTERED = RequestParam(), RequestParam(op_attr_mask=RequestParam.DATATYPE, datatype=library.IOV)
_REF_CONTIGUOUS, _REF_SCATTERED = byref(_CONTIGUOUS), byref(_SCATTERED)
_FORCE = RequestParam(op_attr_mask=RequestParam.FLAGS, flags=library.CLOSE_BY_FORCE)


class Broken(Exception):
    """The connection to the other end has broken, or was never made; with UCX's message."""


class Endpoint:
    """A worker, which is this end, and its endpoint, which leads to the other one.

    UCX does its work within our calls: a waiting thread calls `ucp_worker_progress`, then sleeps on the worker's
    descriptor. Of several waiting threads one does that, and tells the others. Nothing is called while no thread
    waits or sends, so a large message, which needs both ends, stays in place until its receiver asks for it.

    Every method except `wait`, `wake` and `destroy` is called with `lock` held; `wait` holds it for `ready`.

    Args:
      key: the stream's; messages without it are ignored.
    """

    def __init__(self, context: UcxContext, key: int) -> None:
        self._ucp = context.library
        self._context = context
        self._key = key << KINDS
        self.lock = threading.Lock()
        self._news = threading.Condition(self.lock)
        self.failure: str | None = None
        """Why nothing more can be sent or received, in UCX's words."""
        self._on_error = OnError(self._record_failure)
        self._worker: int = context.make_worker()
        self._handle = 0
        self._leading = False
        self._strays = self._rounds = 0
        self._info = TagInfo()
        self._ref_info = byref(self._info)
        descriptor = c_int()
        try:
            context.check(self._ucp.worker_get_efd(self._worker, byref(descriptor)), "its worker has no descriptor")
        except BaseException:
            self.destroy()
            raise
        self._poll = select.poll()
        self._poll.register(descriptor.value, select.POLLIN)

    @property
    def address(self) -> bytes:
        """Address at which the other end reaches this worker."""
        address, length = c_void_p(), c_size_t()
        status = self._ucp.worker_get_address(self._worker, byref(address), byref(length))
        self._context.check(status, "its worker has no address")
        try:
            return ctypes.string_at(address, length.value)
        finally:
            self._ucp.worker_release_address(self._worker, address)

    def connect(self, address: bytes) -> None:
        """Connects to the worker with this address.

        Raises:
          TransportUnavailable: the two have no network in common.
        """
        self._handle = self._context.make_endpoint(self._worker, address, self._on_error)

    def transports(self) -> tuple[str, ...]:
        """Returns UCX's names of the transports in use: `tcp`, `rc_mlx5`, ..."""
        entries = (TransportEntry * _MOST_LANES)()
        asked = EndpointAttributes(
            field_mask=EndpointAttributes.TRANSPORTS,
            entries=entries,
            num_entries=_MOST_LANES,
            entry_size=ctypes.sizeof(TransportEntry),
        )
        if not self._handle or self._ucp.ep_query(self._handle, byref(asked)) != library.OK:
            return ()
        return tuple(dict.fromkeys(entry.transport.decode() for entry in entries[: asked.num_entries]))

    def _record_failure(self, _argument: int, _endpoint: int, status: int) -> None:
        if self.failure is None:
            self.failure = self._ucp.describe(status)

    def send(self, kind: int, address: int, count: int, scattered: bool = False) -> int:
        """Starts to send; `finished` tells when the memory is free again. Returns 0 if it is at once.

        Args:
          address, count: the memory and its bytes, or, if `scattered`, a list of (address, bytes) and its length.
        """
        if not self._handle:
            raise Broken(self.failure or "closed")
        request: int | None = self._ucp.tag_send_nbx(
            self._handle, address, count, self._key | kind, _REF_SCATTERED if scattered else _REF_CONTIGUOUS
        )
        return self._started(request)

    def find(self, kind: int = 0) -> int:
        """Returns the next message, or the next of a kind, that has arrived or been announced by its sender; 0 if none.

        `found` has its kind and its length in bytes. The caller then owns and accepts it.
        """
        if not self._worker:
            return 0
        tag, mask = (self._key | kind, _EVERY_BIT) if kind else (self._key, KEY_MASK)
        return self._ucp.tag_probe_nb(self._worker, tag, mask, 1, self._ref_info) or 0

    @property
    def found(self) -> tuple[int, int]:
        """Kind and length of the message last found by `find`."""
        return self._info.tag & ~KEY_MASK, self._info.length

    def accept(self, handle: int, address: int, length: int) -> int:
        """Starts to receive a message into memory; poll `finished`. Returns 0 if it is already complete."""
        return self._started(self._ucp.tag_msg_recv_nbx(self._worker, address, length, handle, _REF_CONTIGUOUS))

    def _started(self, request: int | None) -> int:
        if not request:
            return 0
        if request >= _ERRORS_FROM:
            raise Broken(self.failure or self._ucp.describe(request - (1 << 64)))
        return request

    def finished(self, request: int) -> bool:
        """Whether a request is done; if so, frees it, so do not pass it again.

        Raises:
          Broken: it has failed.
        """
        status: int = self._ucp.request_check_status(request)
        if status == library.IN_PROGRESS:
            return False
        self._ucp.request_free(request)
        if status != library.OK:
            raise Broken(self.failure or self._ucp.describe(status))
        return True

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until `ready()` is true, checked whenever something arrives; returns whether it is.

        `wake` triggers another check.
        """
        deadline = time.monotonic() + timeout_s
        with self.lock:
            while True:
                more = self._progress()
                if ready():
                    return True
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0 or not self._worker:
                    return False
                if more:
                    continue
                if self._leading:
                    self._news.wait(remaining_s)
                elif self._ucp.worker_arm(self._worker) == library.OK:
                    self._sleep(remaining_s)

    def _progress(self) -> bool:
        """Returns whether something has come or gone, so that there may be more."""
        if not self._worker or not self._ucp.worker_progress(self._worker):
            return False
        if self._leading:  # what has come may be for the sleeping thread
            self._ucp.worker_signal(self._worker)
        self._rounds += 1
        if self._rounds % _STRAYS_EVERY == 0:
            self._discard_strays(KINDS + self._rounds // _STRAYS_EVERY % (64 - KINDS))
        return True

    def _discard_strays(self, bit: int) -> None:
        """Discards the messages whose key differs from the stream's in this bit: half of all random ones.

        UCX accepts messages from any sender that reaches its port and speaks its protocol. No peer sends these.
        """
        mask = 1 << bit
        while self._worker and self.failure is None:
            handle = self._ucp.tag_probe_nb(self._worker, ~self._key & mask, mask, 1, self._ref_info)
            if not handle:
                return
            request = self._ucp.tag_msg_recv_nbx(self._worker, None, 0, handle, _REF_CONTIGUOUS)
            if request and request < _ERRORS_FROM:
                self._ucp.request_free(request)
            self._strays += 1
            if self._strays > _MOST_STRAYS:
                self.failure = "a sender without the stream's key sends to its port"
                self._context.record_strangers(time.monotonic())
                logger.warning("a stream over UCX ends: %s", self.failure)

    def _sleep(self, timeout_s: float) -> None:
        self._leading = True
        self.lock.release()
        try:
            # Rounded up: poll counts whole milliseconds, and the last fraction must not be a busy wait.
            self._poll.poll(timeout_s * 1000 + 1)
        finally:
            self.lock.acquire()
            self._leading = False
            self._news.notify_all()

    def wake(self) -> None:
        """Makes all waiting threads check `ready` again. From any thread."""
        with self.lock:
            if self._worker:
                self._ucp.worker_signal(self._worker)
            self._news.notify_all()

    def cut(self) -> None:
        """Breaks the connection to the other end at once; pending sends and receives fail."""
        if self._handle:
            endpoint, self._handle = self._handle, 0
            self.failure = self.failure or "closed"
            request = self._ucp.ep_close_nbx(endpoint, byref(_FORCE))
            with contextlib.suppress(Broken):
                begun = self._started(request)
                for _ in range(1000):
                    if not begun or self.finished(begun):
                        break
                    self._ucp.worker_progress(self._worker)

    def destroy(self) -> None:
        """Frees everything, once no thread sleeps in it. Idempotent."""
        with self.lock:
            while self._leading:
                self._ucp.worker_signal(self._worker)
                self._news.wait_for(lambda: not self._leading, 0.1)
            if self._worker:
                self.cut()
                worker, self._worker = self._worker, 0
                self._ucp.worker_destroy(worker)
            self._news.notify_all()
