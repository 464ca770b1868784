"""Several machines: network namespaces, each with a network card of its own, joined by a switch.

Nothing but the network is shared that way: a task finds neither the loopback ports nor the shared memory of another.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

PORT = 2222

_NOBODY = "02:00:00:00:00:99"
"""No card has it: what is sent there is lost, and nobody is told."""

_OVER = {"SYN-RECV", "TIME-WAIT", "FIN-WAIT-1", "FIN-WAIT-2", "LAST-ACK", "CLOSING"}
"""What the system keeps for a while of a connection that no process has any more."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Machines:
    """Some machines and the switch between them. Every fault takes effect at once, on open connections too."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    switch: str

    def unplug(self, index: int) -> None:
        """Pulls a machine's cable: packets vanish, and nobody is told."""
        _ip("-n", self.switch, "link", "set", f"port{index}", "down")

    def plug(self, index: int) -> None:
        """Puts the cable back."""
        _ip("-n", self.switch, "link", "set", f"port{index}", "up")

    def mute(self, index: int, towards: int | None = None) -> None:
        """What a machine sends, to one other or to all, is lost; what is sent to it arrives."""
        for other in self._others(index) if towards is None else [towards]:
            self._mislead(index, other)

    def unmute(self, index: int, towards: int | None = None) -> None:
        """What it sends arrives again."""
        for other in self._others(index) if towards is None else [towards]:
            self._lead(index, other)

    def deafen(self, index: int) -> None:
        """What is sent to a machine is lost; what it sends arrives."""
        for other in self._others(index):
            self._mislead(other, index)

    def undeafen(self, index: int) -> None:
        """What is sent to it arrives again."""
        for other in self._others(index):
            self._lead(other, index)

    def slow(self, index: int, rate: str = "4mbit") -> None:
        """Makes a machine's line slow, both ways."""
        shape = ("root", "tbf", "rate", rate, "burst", "16kb", "latency", "200ms")
        _run("tc", "-n", self.names[index], "qdisc", "replace", "dev", "card", *shape)
        _run("tc", "-n", self.switch, "qdisc", "replace", "dev", f"port{index}", *shape)

    def quicken(self, index: int) -> None:
        """Makes its line as fast as the others again."""
        _run("tc", "-n", self.names[index], "qdisc", "delete", "dev", "card", "root")
        _run("tc", "-n", self.switch, "qdisc", "delete", "dev", f"port{index}", "root")

    def sockets(self, index: int) -> list[str]:
        """The TCP sockets that a machine's processes have open, one a line."""
        listed = _run("ip", "netns", "exec", self.names[index], "ss", "-Htan")
        return [line for line in listed.splitlines() if line.split()[0] not in _OVER]

    def _others(self, index: int) -> list[int]:
        return [other for other in range(len(self.names)) if other != index]

    def _mislead(self, sender: int, receiver: int) -> None:
        wrong = ("lladdr", _NOBODY, "dev", "card", "nud", "permanent")
        _ip("-n", self.names[sender], "neighbour", "replace", _host(receiver), *wrong)

    def _lead(self, sender: int, receiver: int) -> None:
        _ip("-n", self.names[sender], "neighbour", "delete", _host(receiver), "dev", "card")


def _host(index: int) -> str:
    return f"10.77.0.{index + 1}"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10.0)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


@contextmanager
def connected(count: int) -> Iterator[Machines]:
    """So many machines; they vanish at the end. Skips the test where this machine lets nobody make them."""
    if os.geteuid() != 0 or any(shutil.which(program) is None for program in ("ip", "tc", "ss")):
        pytest.skip("network namespaces need root and the programs ip, tc and ss")
    mark = f"tb{os.getpid()}-{next(_numbers)}"
    switch, *names = (f"{mark}-{name}" for name in ("switch", *range(count)))
    made = []
    try:
        try:
            for name in (switch, *names):
                _ip("netns", "add", name)
                made.append(name)
            _ip("-n", switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", switch, "link", "set", "switch", "up")
            for i, name in enumerate(names):
                _ip("-n", switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", "card", "netns", name)
                _ip("-n", switch, "link", "set", f"port{i}", "master", "switch", "up")
                _ip("-n", name, "address", "add", f"{_host(i)}/24", "dev", "card")
                _ip("-n", name, "link", "set", "card", "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except OSError as exc:
            pytest.skip(f"this machine does not let us make network namespaces: {exc}")
        yield Machines(tuple(names), tuple(f"{_host(i)}:{PORT}" for i in range(count)), switch)
    finally:
        for name in made:
            with suppress(OSError):
                _ip("netns", "delete", name)


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Three machines; they vanish with the test."""
    with connected(3) as three:
        yield three
