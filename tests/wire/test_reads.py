"""Who may list and read variables by Flight's own methods, in a job with a secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.flight as plain
import pytest
from tests.programs import until
from tests.security.attacks.relay import Relay
from tests.wire.harness import FAST
from tests.wire.serving import EchoHandler

from trainband.cluster.identity import OBSERVER, Identity
from trainband.wire.flight import ConnectionLimits, FlightConnection, FlightListener
from trainband.wire.flight.tickets import TicketSender
from trainband.wire.security.security import Security

SECRET = b"s" * 32
QUICK = plain.FlightCallOptions(timeout=10.0)


@pytest.fixture
def listener() -> Iterator[FlightListener]:
    handler = EchoHandler()
    handler.variables["w"] = np.arange(3.0, dtype=np.float32)
    one = FlightListener(
        "127.0.0.1:0",
        handler,
        FAST,
        security=Security(Identity("ps:0", "x"), SECRET),
        limits=ConnectionLimits(stranger_s=0.5),
        say=lambda _: None,
    )
    yield one
    one.stop(1.0)


def member(address: str) -> FlightConnection:
    return FlightConnection(address, FAST, Security(OBSERVER, SECRET))


def names(client: Any) -> list[bytes]:
    return [info.descriptor.path[0] for info in client.list_flights(options=QUICK)]


def read_all(client: Any) -> None:
    client.get_flight_info(plain.FlightDescriptor.for_path("w"), QUICK)


def get(client: Any) -> None:
    client.do_get(plain.Ticket("w"), QUICK).read_all()


READS = (names, read_all, get)


def test_a_member_reads(listener: FlightListener) -> None:
    with member(listener.address).proved_client(timeout_s=20.0) as client:
        assert names(client) == [b"w"]
        for read in READS:
            read(client)


def test_the_address_of_a_member_lets_nobody_read(listener: FlightListener) -> None:
    with Relay(listener.address) as relay, member(relay.address).proved_client(timeout_s=20.0) as client:
        assert names(client) == [b"w"]
        relay.close()
        with Relay(listener.address, relay.source) as other, plain.connect(f"grpc://{other.address}") as stranger:
            for read in READS:
                with pytest.raises(plain.FlightServerError, match="no credentials of this job"):
                    read(stranger)
            assert other.source == relay.source


class Replay(TicketSender):
    """Sends its first ticket again and again."""

    first: Any = None

    def start_call(self, info: Any) -> Any:
        self.first = self.first or super().start_call(info)
        return self.first


def test_a_ticket_is_for_one_call(listener: FlightListener, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = member(listener.address)
    monkeypatch.setattr(connection, "_tickets", Replay())
    with connection.proved_client(timeout_s=20.0) as client:
        assert names(client) == [b"w"]
        for read in READS:
            with pytest.raises(plain.FlightServerError, match=r"it is a repetition|its seal is invalid"):
                read(client)


def test_a_stranger_at_a_members_address_is_still_a_stranger(listener: FlightListener) -> None:
    with Relay(listener.address) as relay:
        with member(relay.address).proved_client(timeout_s=20.0) as client:
            assert names(client) == [b"w"]
            guard = listener._guard  # noqa: SLF001
            until(lambda: bool(guard._admitted), "a look at the connection of the member")  # noqa: SLF001
        relay.close()
        with Relay(listener.address, relay.source) as other, other.connect() as one:
            assert other.source == relay.source
            one.settimeout(0.1)

            def is_closed() -> bool:
                try:
                    return not one.recv(1 << 16)
                except TimeoutError:
                    return False
                except OSError:
                    return True

            until(is_closed, "the end of a connection that proves nothing")
