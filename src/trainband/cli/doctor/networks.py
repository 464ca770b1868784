"""Network devices and RDMA ports, as Linux shows them."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from pathlib import Path

from trainband.cli.doctor.finding import Finding, info, missing, ok, problem

_ROOT = Path("/")
_SIOCGIFADDR = 0x8915


def devices(root: Path = _ROOT) -> list[Finding]:
    """Network devices that are up, and the names of the others.

    Args:
      root: the directory where `sys` and `proc` are.
    """
    found, down = [], []
    folder = root / "sys/class/net"
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not (path / "mtu").exists():
            continue  # bonding_masters, which is a file
        state = _read(path / "operstate")
        addresses = _addresses(path.name, root)
        if state not in ("up", "unknown") or not addresses:
            down.append(path.name)
            continue
        mtu, speed = _read(path / "mtu"), _read(path / "speed")
        megabits = int(speed) if speed.isdecimal() else 0  # -1: a virtual device
        text = [", ".join(addresses), f"MTU {mtu}"]
        text += [f"{megabits / 1000:g} Gb/s"] if megabits else []
        found.append(ok(path.name, ", ".join(text), addresses=addresses, mtu=int(mtu or 0), megabits=megabits))
    if not found and not down:
        return [missing("devices", "unknown: only Linux shows them")]
    if down:
        found.append(info("not in use", ", ".join(down), devices=down))
    return found


def _addresses(device: str, root: Path) -> list[str]:
    """The first IPv4 address, and the IPv6 addresses that are not link-local."""
    found = []
    with contextlib.suppress(OSError, ImportError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        import fcntl

        answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", device.encode()[:15]))
        found.append(socket.inet_ntoa(answer[20:24]))
    for line in _read(root / "proc/net/if_inet6").splitlines():
        number, *_, name = line.split()
        address = ipaddress.IPv6Address(bytes.fromhex(number))
        if name == device and not address.is_link_local:
            found.append(str(address))
    return found


def rdma_ports(root: Path = _ROOT) -> list[Finding]:
    """The ports of InfiniBand and RoCE adapters.

    Args:
      root: the directory where `sys` is.
    """
    found = []
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        name = f"{port.parents[1].name}:{port.name}"
        # "4: ACTIVE" and "200 Gb/sec (4X HDR)"
        state = _read(port / "state").rpartition(":")[2].strip() or "unknown"
        layer, speed = _read(port / "link_layer") or "unknown", _read(port / "rate")
        text = ", ".join(filter(None, [layer, state.lower(), speed]))
        if state == "ACTIVE":
            found.append(ok(name, text, state=state, link_layer=layer, rate=speed))
        else:
            advice = "Check the cable and the switch; InfiniBand also needs a subnet manager. Meanwhile, TCP is used."
            found.append(problem(name, text, advice, state=state, link_layer=layer, rate=speed))
    return found


def _read(path: Path) -> str:
    """The text of a kernel file; empty if reading it fails, as it does for some."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
