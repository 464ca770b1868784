"""UCX in this process: loaded and set up once, when the first stream asks for it."""

from __future__ import annotations

import ctypes
import math
import resource
import threading
from collections.abc import Mapping
from ctypes import byref, c_void_p

from trainband.cluster.resolvers.transport import ucx_settings
from trainband.errors import TransportUnavailable
from trainband.wire.ucx import library
from trainband.wire.ucx.library import EndpointParams, Library, Params, WorkerParams, has_rdma

SETTINGS: Mapping[str, str] = {
    # Segments that hold a small model's gradient, and socket buffers that hold several: 320 kB each way took
    # 0.41 ms with UCX's defaults and 0.09 ms with these; 400 MB 980 ms and 117 ms.
    "TCP_TX_SEG_SIZE": "256K",
    "TCP_RX_SEG_SIZE": "256K",
    "TCP_SNDBUF": "4M",
    "TCP_RCVBUF": "4M",
    # Otherwise a port behind a firewall would block the caller, in a C function, for two minutes.
    "TCP_CONN_NB": "y",
    # From here on UCX sends arrays in place.
    "ZCOPY_THRESH": "8K",
    # Up to here it sends at once; beyond, it first asks, so that the data arrives in its final place. Asking
    # costs both ends a wake-up: 0.50 ms for 320 kB each way became 0.66 ms.
    "RNDV_THRESH": "1M",
}
"""UCX settings that apply unless set in the user's environment (`UCX_` before the name)."""

SMALL_MEMLOCK = 64 << 20
"""Bytes. With less lockable memory, RDMA cannot register the buffers of an ordinary model."""

_API = (1, 14)
_AVOID_S = 600.0


class UcxContext:
    """`ucp_context_h`, with the state shared by all streams of this process.

    Raises:
      TransportUnavailable: UCX is missing, too old, or unusable with the settings of the environment.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        path = library.find()
        if not path:
            raise TransportUnavailable(
                "the transport ucx needs UCX, which is not installed: pip install 'trainband[ucx]' (or install the UCX "
                "of your distribution or network vendor, libucp.so)."
            )
        self.settings = settings
        self.library = Library(path)
        if "LOG_LEVEL" not in settings:
            # UCX writes to standard output, which belongs to the user's program; we get its errors as statuses.
            self.library.set_global("LOG_LEVEL", "fatal")
        self.handle = self._make()
        self._strangers_at = -math.inf

    def record_strangers(self, now: float) -> None:
        """Records that a stranger has sent to our UCX port."""
        self._strangers_at = now

    def has_strangers(self, now: float) -> bool:
        """Whether that was recent, so that streams should use another transport."""
        return now - self._strangers_at < _AVOID_S

    def _make(self) -> int:
        ucp = self.library
        config, handle = c_void_p(), c_void_p()
        self.check(ucp.config_read(None, None, byref(config)), "its settings cannot be read")
        try:
            for name, value in SETTINGS.items():
                if name not in self.settings:
                    self.check(ucp.config_modify(config, name.encode(), value.encode()), f"{name} = {value}")
            params = Params(
                field_mask=Params.FEATURES | Params.NAME,
                features=library.FEATURE_TAG | library.FEATURE_WAKEUP,
                name=b"trainband",
            )
            self.check(ucp.init_version(*_API, byref(params), config, byref(handle)), "it does not start")
        finally:
            ucp.config_release(config)
        return handle.value or 0

    def check(self, status: int, doing: str) -> None:
        """Raises `TransportUnavailable` if UCX has refused something that this machine should have."""
        if status != library.OK:
            raise TransportUnavailable(
                f"UCX {self.library.version_text} cannot be used here: {doing} ({self.library.describe(status)})"
                f"{self._hint()}."
            )

    def _hint(self) -> str:
        said = [f"UCX_{name}={value}" for name, value in self.settings.items() if name in _OFTEN_WRONG]
        hints = [f"the environment sets {', '.join(said)}"] if said else []
        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if has_rdma() and 0 <= soft < SMALL_MEMLOCK:
            hints.append(f"RDMA needs locked memory, but this process may have {soft >> 10:,} KiB: raise `ulimit -l`")
        return "; " + "; ".join(hints) if hints else ""

    def make_worker(self) -> int:
        """Creates a `ucp_worker_h`, whose messages wake its descriptor."""
        handle = c_void_p()
        params = WorkerParams(
            field_mask=WorkerParams.THREAD_MODE | WorkerParams.EVENTS | WorkerParams.FLAGS,
            thread_mode=library.SERIALIZED,
            events=library.WAKE_ON_TAG_SEND | library.WAKE_ON_TAG_RECEIVE,
            flags=WorkerParams.IGNORE_REQUEST_LEAK,
        )
        self.check(self.library.worker_create(self.handle, byref(params), byref(handle)), "it cannot create a worker")
        return handle.value or 0

    def make_endpoint(self, worker: int, address: bytes, on_error: library.OnErrorCallback) -> int:
        """Creates a `ucp_ep_h` to the worker with this address. Calls `on_error` when it fails."""
        handle = c_void_p()
        held = ctypes.create_string_buffer(address, len(address))
        params = EndpointParams(
            field_mask=EndpointParams.ADDRESS | EndpointParams.ERROR_MODE | EndpointParams.ERROR_HANDLER,
            address=ctypes.cast(held, c_void_p),
            error_mode=library.ERRORS_OF_PEERS,
            error_handler=on_error,
        )
        status = self.library.ep_create(worker, byref(params), byref(handle))
        self.check(status, "the other end has no network in common with this one")
        return handle.value or 0


_OFTEN_WRONG = ("TLS", "NET_DEVICES", "TCP_PORT_RANGE", "IB_GID_INDEX")


def is_installed() -> bool:
    """Whether UCX is installed, usable or not; does not load it."""
    return bool(library.find())


_lock = threading.Lock()
_found: list[UcxContext | TransportUnavailable] = []


def ucx() -> UcxContext:
    """Returns UCX in this process, set up on the first call.

    Raises:
      TransportUnavailable: as `UcxContext`; the same error each time.
    """
    with _lock:
        if not _found:
            try:
                _found.append(UcxContext(ucx_settings()))
            except TransportUnavailable as exc:
                _found.append(exc)
        if isinstance(_found[0], TransportUnavailable):
            raise _found[0]
        return _found[0]
