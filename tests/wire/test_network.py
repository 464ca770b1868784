"""With which security a task serves and calls where nobody has said."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.wire.harness import FAST
from tests.wire.serving import EchoHandler

from trainband.cluster.credentials import Credentials
from trainband.errors import AuthenticationError, ClusterError
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


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose environment says nothing of security."""
    for name in ("TRAINBAND_SECRET_FILE", "TRAINBAND_TLS", "TRAINBAND_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    become("user", tmp_path, monkeypatch)


def become(user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this process looks where a user has secrets."""
    (tmp_path / user).mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(tmp_path / user))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def echoed(network: Network, address: str) -> bytes:
    with closing(network.connect(address, FAST)) as connection:
        return connection.call("echo", b"hello", timeout_s=20.0)


@pytest.mark.usefixtures("user")
def test_tasks_of_one_user_find_one_another_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Network().listen("localhost:0", EchoHandler(), FAST)
    try:
        assert echoed(Network(), listener.address) == b"hello"
        with pytest.raises(AuthenticationError, match="give it the same TRAINBAND_SECRET_FILE"):
            echoed(Network(credentials=Credentials()), listener.address)
        become("other", tmp_path, monkeypatch)
        with pytest.raises(AuthenticationError, match=r"to another user\. .* the same TRAINBAND_SECRET_FILE"):
            echoed(Network(), listener.address)
    finally:
        listener.stop(1.0)


@pytest.mark.usefixtures("user")
def test_a_listener_that_proves_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Network(credentials=Credentials(insecure=True)).listen("127.0.0.1:0", EchoHandler(), FAST)
    try:
        with pytest.raises(AuthenticationError, match="start both with TRAINBAND_INSECURE=1"):
            echoed(Network(), listener.address)
        monkeypatch.setenv("TRAINBAND_INSECURE", "1")
        assert echoed(Network(), listener.address) == b"hello"
    finally:
        listener.stop(1.0)


@pytest.mark.usefixtures("user")
def test_the_secret_of_a_user_is_none_between_machines() -> None:
    with pytest.raises(ClusterError, match=r"without security: .*trainband secret FILE"):
        Network().listen(EVERYWHERE, EchoHandler(), FAST)
