"""What processes listen on, as the kernel knows it."""

from __future__ import annotations

import contextlib
import ipaddress
import struct
from collections.abc import Iterable
from pathlib import Path

_TCP_LISTEN = "0A"
_UNIX_LISTENS = 0x10000


def listening_sockets(pids: Iterable[int]) -> dict[int, set[str]]:
    """By process: `127.0.0.1:2222` for a TCP socket that listens, `@name` for an abstract Unix socket."""
    found = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):  # it has ended
            names = _by_inode(pid)
            found[pid] = {names[inode] for inode in _inodes(pid) if inode in names}
    return found


def _inodes(pid: int) -> set[str]:
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kind, _, inode = str(descriptor.readlink()).partition(":[")
            if kind == "socket":
                inodes.add(inode.rstrip("]"))
    return inodes


def _by_inode(pid: int) -> dict[str, str]:
    """All listening sockets of the process's network namespace."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _TCP_LISTEN:
                found[fields[9]] = _address(fields[1])
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & _UNIX_LISTENS:
            found[fields[6]] = fields[7] if len(fields) > 7 else "(unnamed)"
    return found


def _address(text: str) -> str:
    host, _, port = text.partition(":")
    words = [struct.pack("<I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return f"{mapped or address}:{int(port, 16)}"
