"""Where a task serves without security."""

from __future__ import annotations

import pytest
from tests.wire.harness import FAST
from tests.wire.serving import EchoHandler

from trainband.cluster.credentials import Credentials
from trainband.errors import ClusterError
from trainband.wire.network import Network

EVERYWHERE = "0.0.0.0:0"


def test_nobody_serves_the_network_without_security() -> None:
    with pytest.raises(ClusterError, match=r"without security: .*trainband secret FILE.*TRAINBAND_INSECURE=1"):
        Network(credentials=Credentials()).listen(EVERYWHERE, EchoHandler(), FAST)


@pytest.mark.parametrize("credentials", [Credentials(secret=b"s" * 32), Credentials(insecure=True)])
def test_with_security_or_by_choice_it_does(credentials: Credentials) -> None:
    said: list[str] = []
    listener = Network(credentials=credentials, say=said.append).listen(EVERYWHERE, EchoHandler(), FAST)
    listener.stop(1.0)
    assert [("without security" in line) for line in said] == ([True] if credentials.insecure else [])


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0"])
def test_on_its_own_machine_it_may(address: str) -> None:
    Network(credentials=Credentials()).listen(address, EchoHandler(), FAST).stop(1.0)
