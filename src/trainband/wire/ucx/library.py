"""UCX's C interface (`ucp.h` of openucx.org, version 1), as far as streams need it, by ctypes.

The functions have the same names as in C; this file declares their signatures and structures, and finds the
library. ctypes releases the GIL during a call.

UCX's own Python package, ucxx, would require CUDA's bindings and RAPIDS' memory manager, and its own event loop;
docs/networks.md has the figures that decided against it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path
from typing import Any

from trainband.errors import TransportUnavailable

OK, IN_PROGRESS = 0, 1

FEATURE_TAG, FEATURE_WAKEUP = 1 << 0, 1 << 4
ERRORS_OF_PEERS = 1
"""`UCP_ERR_HANDLING_MODE_PEER`: the end of a peer is an error of its endpoint."""
CLOSE_BY_FORCE = 1
WAKE_ON_TAG_SEND, WAKE_ON_TAG_RECEIVE = 1 << 2, 1 << 3
SERIALIZED = 1
"""`UCS_THREAD_MODE_SERIALIZED`: any thread, one at a time."""
IOV = 2
"""`ucp_dt_make_iov()`: the buffer is a list of (address, length)."""


class Params(Structure):
    """`ucp_params_t`."""

    FEATURES, NAME = 1 << 0, 1 << 8
    _fields_ = (
        ("field_mask", c_uint64),
        ("features", c_uint64),
        ("request_size", c_size_t),
        ("request_init", c_void_p),
        ("request_cleanup", c_void_p),
        ("tag_sender_mask", c_uint64),
        ("mt_workers_shared", c_int),
        ("estimated_num_eps", c_size_t),
        ("estimated_num_ppn", c_size_t),
        ("name", c_char_p),
        ("node_local_id", c_size_t),
    )


class WorkerParams(Structure):
    """`ucp_worker_params_t`."""

    THREAD_MODE, EVENTS, FLAGS = 1 << 0, 1 << 2, 1 << 5
    IGNORE_REQUEST_LEAK = 1
    _fields_ = (
        ("field_mask", c_uint64),
        ("thread_mode", c_int),
        ("cpu_mask", c_uint64 * 16),
        ("events", c_uint),
        ("user_data", c_void_p),
        ("event_fd", c_int),
        ("flags", c_uint64),
        ("name", c_char_p),
        ("am_alignment", c_size_t),
        ("client_id", c_uint64),
    )


OnError = CFUNCTYPE(None, c_void_p, c_void_p, c_int)
"""(argument, endpoint, status): called inside `ucp_worker_progress` when an endpoint has failed."""
OnErrorCallback = Any
"""An `OnError`, for the type checker, which does not accept it as a type."""


class EndpointParams(Structure):
    """`ucp_ep_params_t`."""

    ADDRESS, ERROR_MODE, ERROR_HANDLER = 1 << 0, 1 << 1, 1 << 2
    _fields_ = (
        ("field_mask", c_uint64),
        ("address", c_void_p),
        ("error_mode", c_int),
        ("error_handler", OnError),
        ("error_argument", c_void_p),
        ("user_data", c_void_p),
        ("flags", c_uint),
        ("sockaddr", c_void_p),
        ("sockaddr_length", c_uint32),
        ("conn_request", c_void_p),
        ("name", c_char_p),
        ("local_sockaddr", c_void_p),
        ("local_sockaddr_length", c_uint32),
    )


class RequestParam(Structure):
    """`ucp_request_param_t`."""

    DATATYPE, FLAGS = 1 << 3, 1 << 4
    _fields_ = (
        ("op_attr_mask", c_uint32),
        ("flags", c_uint32),
        ("request", c_void_p),
        ("callback", c_void_p),
        ("datatype", c_uint64),
        ("user_data", c_void_p),
        ("reply_buffer", c_void_p),
        ("memory_type", c_int),
        ("recv_info", c_void_p),
        ("memh", c_void_p),
        ("remote_datatype", c_uint64),
        ("remote", c_void_p),
        ("remote_count", c_size_t),
    )


class TagInfo(Structure):
    """`ucp_tag_recv_info_t`: describes a message that was found."""

    _fields_ = (("tag", c_uint64), ("length", c_size_t))


class TransportEntry(Structure):
    """`ucp_transport_entry_t`."""

    _fields_ = (("transport", c_char_p), ("device", c_char_p))


class EndpointAttributes(Structure):
    """`ucp_ep_attr_t`."""

    TRANSPORTS = 1 << 3
    _fields_ = (
        ("field_mask", c_uint64),
        ("name", c_char * 32),
        ("local_sockaddr", c_uint64 * 16),
        ("remote_sockaddr", c_uint64 * 16),
        ("entries", POINTER(TransportEntry)),
        ("num_entries", c_uint),
        ("entry_size", c_size_t),
        ("user_data", c_void_p),
    )


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "ucp_get_version": (None, (POINTER(c_uint), POINTER(c_uint), POINTER(c_uint))),
    "ucp_config_read": (c_int, (c_char_p, c_char_p, POINTER(c_void_p))),
    "ucp_config_modify": (c_int, (c_void_p, c_char_p, c_char_p)),
    "ucp_config_release": (None, (c_void_p,)),
    "ucp_init_version": (c_int, (c_uint, c_uint, POINTER(Params), c_void_p, POINTER(c_void_p))),
    "ucp_worker_create": (c_int, (c_void_p, POINTER(WorkerParams), POINTER(c_void_p))),
    "ucp_worker_destroy": (None, (c_void_p,)),
    "ucp_worker_get_address": (c_int, (c_void_p, POINTER(c_void_p), POINTER(c_size_t))),
    "ucp_worker_release_address": (None, (c_void_p, c_void_p)),
    "ucp_worker_get_efd": (c_int, (c_void_p, POINTER(c_int))),
    "ucp_worker_arm": (c_int, (c_void_p,)),
    "ucp_worker_signal": (c_int, (c_void_p,)),
    "ucp_worker_progress": (c_uint, (c_void_p,)),
    "ucp_ep_create": (c_int, (c_void_p, POINTER(EndpointParams), POINTER(c_void_p))),
    "ucp_ep_close_nbx": (c_void_p, (c_void_p, POINTER(RequestParam))),
    "ucp_ep_query": (c_int, (c_void_p, POINTER(EndpointAttributes))),
    "ucp_tag_send_nbx": (c_void_p, (c_void_p, c_void_p, c_size_t, c_uint64, POINTER(RequestParam))),
    "ucp_tag_probe_nb": (c_void_p, (c_void_p, c_uint64, c_uint64, c_int, POINTER(TagInfo))),
    "ucp_tag_msg_recv_nbx": (c_void_p, (c_void_p, c_void_p, c_size_t, c_void_p, POINTER(RequestParam))),
    "ucp_request_check_status": (c_int, (c_void_p,)),
    "ucp_request_free": (None, (c_void_p,)),
}

_QUICK = frozenset(
    {"ucp_worker_arm", "ucp_worker_signal", "ucp_tag_probe_nb", "ucp_request_check_status", "ucp_request_free"}
)
"""Functions that return at once: releasing and taking the GIL would cost more than the call."""

OLDEST = (1, 14)
"""The first version that reports the transport of an endpoint (`ucp_ep_query`)."""


class Library:
    """The loaded UCX library.

    Attributes:
      path: where it was found.
      version: such as (1, 22, 0).
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._ucs, self._ucp = _load(path)
        self._quick = ctypes.PyDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._quick if name in _QUICK else self._ucp, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ucp_"), function)
        self._ucs.ucs_status_string.restype = c_char_p
        self._ucs.ucs_status_string.argtypes = (c_int,)
        numbers = [c_uint() for _ in range(3)]
        self._ucp.ucp_get_version(*numbers)
        self.version = tuple(number.value for number in numbers)
        if self.version[:2] < OLDEST:
            raise TransportUnavailable(
                f"the UCX in {path} is version {self.version_text}; trainband needs {OLDEST[0]}.{OLDEST[1]} or later: "
                "pip install 'trainband[ucx]'."
            )

    def __getattr__(self, name: str) -> Any:  # the functions of `_SIGNATURES`; `__init__` has set them
        raise AttributeError(f"UCX's {name} is not among the functions that trainband declares.")

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    def describe(self, status: int) -> str:
        """Returns UCX's message for a status."""
        text: bytes = self._ucs.ucs_status_string(status)
        return text.decode()

    def set_global(self, name: str, value: str) -> None:
        """Sets one of UCX's settings for the whole process."""
        self._ucs.ucs_global_opts_set_value(name.encode(), value.encode())


def _load(path: str) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Loads libucs and libucp; the others come along."""
    if os.sep not in path:
        return ctypes.CDLL(path.replace("ucp", "ucs")), ctypes.CDLL(path)
    folder = Path(path).parent
    loaded = {name: ctypes.CDLL(str(folder / f"lib{name}.so.0")) for name in ("ucs", "uct", "ucp")}
    return loaded["ucs"], loaded["ucp"]


def has_rdma() -> bool:
    """Whether this machine has an RDMA device (InfiniBand, RoCE, iWARP)."""
    folder = Path("/sys/class/infiniband")
    return folder.is_dir() and any(folder.iterdir())


@cache  # finding the system's library starts processes
def find() -> str:
    """Returns the path of UCX: the wheel's libucp, else the system's; empty without either.

    With an RDMA device, the system's comes first: the wheel is built without the verbs that drive it.
    """
    wheel = _of_wheel()
    return wheel if wheel and not has_rdma() else ctypes.util.find_library("ucp") or wheel


def _of_wheel() -> str:
    found = importlib.util.find_spec("libucx")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(folder) / "lib" / "libucp.so.0"
        if path.is_file():
            return str(path)
    return ""
