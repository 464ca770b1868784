"""Server: one task's door, for people who drive tasks themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.programs import until
from tests.ps.jobs import FAST, FakeClock, in_thread, spec_of

from trainband.cluster import Cluster, Task
from trainband.errors import AddressInUse, ClusterError, PeerError
from trainband.ps.server import Server
from trainband.runtime import SystemRuntime
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import encode
from trainband.wire.transport import Connection

SPEC = spec_of(1, 1)
PS = Cluster(spec=SPEC, task=Task("ps", 0))


def server(transport: MemoryTransport, *cluster: Any, **arguments: Any) -> Server:
    return Server(*cluster, transport=transport, **{"say": lambda _: None, "timeouts": FAST, **arguments})


WAYS: list[tuple[Any, dict[str, Any]]] = [
    # the ways to say which task this is
    (PS, {}),
    (SPEC, {"job_name": "ps", "task_index": 0}),
    ({"ps": ["ps0:1"], "worker": ["worker0:1"]}, {"job_name": "ps", "task_index": 0}),
]


@pytest.mark.parametrize(("cluster", "arguments"), WAYS, ids=["Cluster", "ClusterSpec", "mapping"])
def test_a_ps_listens_from_its_birth_to_its_shutdown(cluster: Any, arguments: dict[str, Any]) -> None:
    transport = MemoryTransport()
    with server(transport, cluster, **arguments) as made:
        assert made.cluster == PS
        assert made.target == "grpc://ps0:1"
        with pytest.raises(AddressInUse):
            server(transport, cluster, **arguments)
    made.shutdown()  # once more is nothing
    server(transport, cluster, **arguments).shutdown()  # the address is free


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (PS, {"job_name": "ps"}, "a Cluster already names its task; leave job_name and task_index out"),
    (SPEC, {"job_name": "ps"}, "give job_name and task_index"),
    (SPEC, {}, "give job_name and task_index"),
    (SPEC, {"job_name": "ps", "task_index": 1}, "no task ps:1"),
    (SPEC, {"job_name": "boss", "task_index": 0}, "'boss' is not a job"),
]


@pytest.mark.parametrize(("cluster", "arguments", "words"), WRONG, ids=range(len(WRONG)))
def test_which_task_must_be_said_once(cluster: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        server(MemoryTransport(), cluster, **arguments)


def test_a_worker_waits_for_the_end_of_the_job() -> None:
    transport = MemoryTransport()
    said: list[str] = []
    ps = server(transport, PS, say=said.append)
    serving = in_thread(ps.join, "ps")
    worker = server(transport, SPEC, job_name="worker", task_index=0, timeouts=replace(FAST, lease_s=1.0, start_s=2.0))
    connection = transport.connect("ps0:1", FAST)
    waiting = in_thread(worker.join, "worker")
    assert not waiting.done()
    connection.call("shutdown", encode(m.Shutdown("enough")), timeout_s=5.0)
    connection.close()
    assert serving.result(20.0) == "shut down: enough"
    assert said == ["ps:0 is at ps0:1", "ps:0 ends: shut down: enough"]
    assert waiting.result(20.0) == "ps:0 has ended"
    worker.shutdown()


class Counted:
    """A connection that counts how often it was answered, and how often not."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.address = connection.address
        self.answered = self.unanswered = 0

    def call(self, action: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        try:
            found = self._connection.call(action, body, timeout_s=timeout_s)
        except PeerError:
            self.unanswered += 1
            raise
        self.answered += 1
        return found

    def await_answers(self) -> None:
        """Until a call that is made from now on has been answered."""
        last = self.answered + 2  # one may be under way
        until(lambda: self.answered >= last, "two answers")

    def await_silence(self) -> None:
        """Until a call that is made from now on has not been answered."""
        last = self.unanswered + 2
        until(lambda: self.unanswered >= last, "two calls without an answer")

    def close(self) -> None:
        self._connection.close()


def test_a_worker_that_waits_for_the_end_outlasts_a_ps_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, clock = MemoryTransport(), FakeClock()
    counted = Counted(transport.connect("ps0:1", FAST))
    monkeypatch.setattr(transport, "connect", lambda *_: counted)
    worker = server(transport, SPEC, job_name="worker", task_index=0, runtime=SystemRuntime(clock))
    waiting = in_thread(worker.join, "worker")
    for _ in range(2):
        ps = server(transport, PS)
        serving = in_thread(ps.join, "ps")
        counted.await_answers()
        ps.shutdown()
        assert serving.result(20.0) == "its server was shut down"
        clock.now += FAST.lease_s - 1.0
        counted.await_silence()
        assert not waiting.done()
    clock.now += FAST.lease_s
    assert waiting.result(60.0) == "ps:0 has ended"
    worker.shutdown()


@pytest.mark.parametrize("given", ["/a", Path("/a"), ["/a"]], ids=["text", "path", "several"])
def test_a_ps_uses_the_directories_that_it_is_given(given: Any) -> None:
    with server(MemoryTransport(), PS, checkpoint_dir=given) as one:
        assert one._service is not None  # noqa: SLF001
        assert one._service.task.directories.directories == (Path("/a"),)  # noqa: SLF001
