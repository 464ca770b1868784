"""What is secret is in no text: an error or a log line may quote any object."""

from __future__ import annotations

import base64
import traceback
from contextlib import closing
from pathlib import Path

import pytest

from trainband.cluster.certificates import issue, make_authority
from trainband.cluster.credentials import Credentials, new_secret
from trainband.cluster.identity import Identity
from trainband.errors import TrainbandError
from trainband.launch.job_files import JobFiles
from trainband.launch.kubernetes.manifest import KubernetesJob
from trainband.launch.request import JobRequest
from trainband.monitor.page.token import token_for
from trainband.runtime.http.access import Access
from trainband.spmd.proof import Proof
from trainband.wire.network import Network
from trainband.wire.security.handshake import ClientSide, ListenerSide, Proved
from trainband.wire.security.security import Security

PS, WORKER = Identity("ps:0", "one"), Identity("worker:0", "two")


def forms(secret: bytes) -> list[str]:
    """How a text may have it."""
    return [secret.decode("latin-1"), repr(secret)[2:-1], secret.hex(), base64.b64encode(secret).decode()]


def objects_with(secret: bytes, ca: Path) -> list[object]:
    """One of each kind that holds it."""
    credentials = Credentials(secret=secret, tls=ca)
    security = Security.of(credentials, PS)
    return [
        credentials,
        security,
        security.tls,
        Network(credentials=credentials),
        Proof.of(credentials, "ps:0"),
        ClientSide(secret, WORKER, "10.0.0.7:2222"),
        ListenerSide(secret, PS, lambda: 0.0),
        Access(token=token_for(credentials)),
        KubernetesJob(name="a", image="i", command=["x"], sizes={"worker": 1}, files={"secret": secret}),
    ]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ca")
    make_authority(directory)
    issue(directory, "ps:0")
    return directory


def test_no_object_shows_it(ca: Path) -> None:
    secret = new_secret().encode()
    hidden = [*forms(secret), token_for(Credentials(secret=secret))]
    for one in objects_with(secret, ca):
        text = repr(one) + str(one)
        assert not [form for form in hidden if form in text], type(one)


def test_nor_the_keys_that_are_made_of_it(ca: Path) -> None:
    client, listener = ClientSide(b"s" * 32, WORKER, "10.0.0.7:2222"), ListenerSide(b"s" * 32, PS, lambda: 0.0)
    session = listener.prove(client.prove(listener.hello(client.request)), "10.0.0.8:1")
    client.start_session(Proved(session=session.number))
    assert not [form for key in (session.up, session.down) for form in forms(key) if form in repr(session)]
    tls = Security.of(Credentials(tls=ca), PS).tls
    assert tls is not None
    assert "PRIVATE KEY" not in repr(tls.options(b""))


def test_nor_does_an_error() -> None:
    """Of one who is refused, on both sides."""
    secret, other = new_secret().encode(), new_secret().encode()
    client, listener = ClientSide(secret, WORKER, "10.0.0.7:2222"), ListenerSide(other, PS, lambda: 0.0)
    hello = listener.hello(client.request)
    with pytest.raises(TrainbandError) as refused:
        client.prove(hello)
    text = "".join(traceback.format_exception(refused.value))
    assert not [form for one in (secret, other) for form in forms(one) if form in text]


def test_a_task_is_told_the_place_of_its_secret_and_never_the_secret(tmp_path: Path) -> None:
    request = JobRequest(program=["x"], environment={"XDG_RUNTIME_DIR": str(tmp_path)}, tls=True)
    with closing(JobFiles(request)) as files:
        files.make(request.tasks(), ["127.0.0.1"], secure=True)
        assert files.directory is not None
        hidden = [(files.directory / "secret").read_text().strip()]
        hidden += [path.read_text() for path in files.directory.glob("*.key")]
        told = [*files.add_to(request.environment).values(), *files.command]
        assert not [one for one in hidden for text in told if one in text]
