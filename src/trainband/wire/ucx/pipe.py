"""One stream's worker and endpoint, and how its threads wait."""

from __future__ import annotations

import contextlib
import ctypes
import select
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_void_p

from . import library
from .context import UcxContext
from .library import EndpointAttributes, OnError, RequestParam, TagInfo, TransportEntry

_EVERY_BIT = (1 << 64) - 1
_ERRORS_FROM = (1 << 64) - 100
"""A pointer from here on is a negative status (`UCS_PTR_IS_ERR`)."""
_MOST_LANES = 16

KINDS = 8
"""Bits of a tag that say what a message is; the others are the stream's key."""
KEY_MASK = _EVERY_BIT >> KINDS << KINDS

_CONTIGUOUS, _SCATTERED = RequestParam(), RequestParam(op_attr_mask=RequestParam.DATATYPE, datatype=library.IOV)
_REF_CONTIGUOUS, _REF_SCATTERED = byref(_CONTIGUOUS), byref(_SCATTERED)
_FORCE = RequestParam(op_attr_mask=RequestParam.FLAGS, flags=library.CLOSE_BY_FORCE)


class Broken(Exception):
    """The way to the other end has broken, or it never led there; in UCX's words."""


class Pipe:
    """A worker, which is this end, and its endpoint, which leads to the other one.

    UCX does its work within calls of ours: whoever waits calls `ucp_worker_progress`, then sleeps on the worker's
    descriptor. Of several threads that wait one does that, and tells the others. Nothing is called while no thread
    waits or sends: so a large message, which needs both ends, stays where it is until its receiver asks for it.

    Every method but `wait`, `wake` and `destroy` is called with `lock` held, which `wait` does for its `ready`.

    Args:
      context: UCX.
      key: of the stream; messages without it are not looked at.
    """

    def __init__(self, context: UcxContext, key: int) -> None:
        self._ucp = context.library
        self._context = context
        self._key = key << KINDS
        self.lock = threading.Lock()
        self._news = threading.Condition(self.lock)
        self.failure: str | None = None
        """Why nothing can be sent or received any more, in UCX's words."""
        self._on_error = OnError(self._note_failure)
        self._worker: int = context.make_worker()
        self._endpoint = 0
        self._leading = False
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
        """By which the other end reaches this worker."""
        address, length = c_void_p(), c_size_t()
        status = self._ucp.worker_get_address(self._worker, byref(address), byref(length))
        self._context.check(status, "its worker has no address")
        try:
            return ctypes.string_at(address, length.value)
        finally:
            self._ucp.worker_release_address(self._worker, address)

    def connect(self, address: bytes) -> None:
        """Leads to the worker with this address.

        Raises:
          TransportUnavailable: the two have no network in common.
        """
        self._endpoint = self._context.make_endpoint(self._worker, address, self._on_error)

    def transports(self) -> tuple[str, ...]:
        """What carries the messages, as UCX calls it: `tcp`, `rc_mlx5`, ..."""
        entries = (TransportEntry * _MOST_LANES)()
        asked = EndpointAttributes(
            field_mask=EndpointAttributes.TRANSPORTS,
            entries=entries,
            num_entries=_MOST_LANES,
            entry_size=ctypes.sizeof(TransportEntry),
        )
        if not self._endpoint or self._ucp.ep_query(self._endpoint, byref(asked)) != library.OK:
            return ()
        return tuple(dict.fromkeys(entry.transport.decode() for entry in entries[: asked.num_entries]))

    def _note_failure(self, _argument: int, _endpoint: int, status: int) -> None:
        if self.failure is None:
            self.failure = self._ucp.describe(status)

    # --- messages

    def send(self, kind: int, address: int, count: int, scattered: bool = False) -> int:
        """Starts to send; `finished` says when the memory is free again. 0 where it is at once.

        Args:
          address, count: the memory and its bytes, or, where `scattered`, a list of (address, bytes) and its length.
        """
        if not self._endpoint:
            raise Broken(self.failure or "closed")
        request: int | None = self._ucp.tag_send_nbx(
            self._endpoint, address, count, self._key | kind, _REF_SCATTERED if scattered else _REF_CONTIGUOUS
        )
        return self._begun(request)

    def find(self, kind: int = 0) -> int:
        """The next message, or the next one of a kind, which has come, or whose sender has said that it has it.

        `found` has its kind and its length in bytes. It is the caller's then, who accepts it. 0 where there is none.
        """
        if not self._worker:
            return 0
        tag, mask = (self._key | kind, _EVERY_BIT) if kind else (self._key, KEY_MASK)
        return self._ucp.tag_probe_nb(self._worker, tag, mask, 1, self._ref_info) or 0

    @property
    def found(self) -> tuple[int, int]:
        """Kind and length of what `find` has found last."""
        return self._info.tag & ~KEY_MASK, self._info.length

    def accept(self, handle: int, address: int, length: int) -> int:
        """Starts to receive a message into memory; `finished` says when it is there. 0 where it is at once."""
        return self._begun(self._ucp.tag_msg_recv_nbx(self._worker, address, length, handle, _REF_CONTIGUOUS))

    def _begun(self, request: int | None) -> int:
        if not request:
            return 0
        if request >= _ERRORS_FROM:
            raise Broken(self.failure or self._ucp.describe(request - (1 << 64)))
        return request

    def finished(self, request: int) -> bool:
        """Whether a request is done; it must not be asked for again then.

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

    # --- waiting

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until `ready()` is true, which is asked again whenever something has come; whether it is.

        `wake` has it asked once more.
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
        """Whether something has come or gone, so that there may be more."""
        if not self._worker or not self._ucp.worker_progress(self._worker):
            return False
        if self._leading:  # what has come may be for the thread that sleeps
            self._ucp.worker_signal(self._worker)
        return True

    def _sleep(self, timeout_s: float) -> None:
        self._leading = True
        self.lock.release()
        try:
            # Rounded up: poll counts whole milliseconds, and the last part of one must not be a busy wait.
            self._poll.poll(timeout_s * 1000 + 1)
        finally:
            self.lock.acquire()
            self._leading = False
            self._news.notify_all()

    def wake(self) -> None:
        """Has whatever waits ask `ready` again. From any thread."""
        with self.lock:
            if self._worker:
                self._ucp.worker_signal(self._worker)
            self._news.notify_all()

    # --- the end

    def cut(self) -> None:
        """Ends the way to the other end at once; what was being sent or received fails."""
        if self._endpoint:
            endpoint, self._endpoint = self._endpoint, 0
            self.failure = self.failure or "closed"
            request = self._ucp.ep_close_nbx(endpoint, byref(_FORCE))
            with contextlib.suppress(Broken):
                begun = self._begun(request)
                for _ in range(1000):
                    if not begun or self.finished(begun):
                        break
                    self._ucp.worker_progress(self._worker)

    def destroy(self) -> None:
        """Gives everything back, once no thread sleeps in it. Idempotent."""
        with self.lock:
            while self._leading:
                self._ucp.worker_signal(self._worker)
                self._news.wait_for(lambda: not self._leading, 0.1)
            if self._worker:
                self.cut()
                worker, self._worker = self._worker, 0
                self._ucp.worker_destroy(worker)
            self._news.notify_all()
