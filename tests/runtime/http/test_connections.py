"""How many connections there may be, on a clock of the test's."""

from __future__ import annotations

from trainband.runtime.http.connections import Connections, HttpLimits


class One:
    """A connection; it notes its end."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.is_open = True

    def abort(self) -> None:
        self.is_open = False


def test_silent_connections_keep_nobody_out() -> None:
    now = 0.0
    limits = HttpLimits(head_s=5.0, connections=5, connections_of_host=3)
    connections = Connections(limits, lambda: now)
    silent = [One() for _ in range(10)]
    for one in silent:
        assert connections.admit(one, "10.0.0.9")
    assert [one.is_open for one in silent] == [False] * 7 + [True] * 3, "the oldest are closed"
    others = [One(), One(), One()]
    for number, one in enumerate(others):
        assert connections.admit(one, f"10.0.0.{number}")
    assert len(connections) == 5
    for one in others:
        one.deadline = None  # their requests are being answered
    now = 5.0
    connections.sweep()
    assert not any(one.is_open for one in silent)
    assert all(one.is_open for one in others)
    busy = [One() for _ in range(2)]
    for one in busy:
        assert connections.admit(one, "10.0.0.9")
        one.deadline = None
    assert not connections.admit(One(), "10.0.0.8"), "all have a request under way"
    for one in [*busy, *others, silent[0]]:
        connections.forget(one)
    assert len(connections) == 0


def test_a_network_of_ipv6_is_one_host() -> None:
    connections = Connections(HttpLimits(connections_of_host=2), lambda: 0.0)
    first, *others = [One() for _ in range(3)]
    for number, one in enumerate([first, *others]):
        assert connections.admit(one, f"2001:db8::{number:x}%eth0")
    assert not first.is_open
    assert connections.admit(One(), "2001:db8:0:1::1")
    assert all(one.is_open for one in others)
