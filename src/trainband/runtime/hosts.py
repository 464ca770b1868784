"""Hosts in addresses: which ones mean this machine, and how they are written with a port."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host, without a port, means every machine itself: `localhost`, `::1` and 127.0.0.0/8."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name


def with_port(host: str, port: int) -> str:
    """Returns `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
