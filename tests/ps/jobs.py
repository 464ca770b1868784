"""A job in one process, and a worker's stream that is played from a script."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import optax
from numpy.typing import NDArray
from tests.ps.plans import blocks_of, plan_of

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.errors import StreamClosed
from trainband.model.placement import PlacementPolicy
from trainband.model.variables import PyTree
from trainband.ps.service.service import ParameterService
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.plan import Plan
from trainband.runtime import SYSTEM, Runtime
from trainband.wire.frame import Bytes, Frame
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import decode_any, encode
from trainband.wire.transport import Listener, Timeouts

FAST = Timeouts(connect_s=30.0, call_s=30.0, stall_s=30.0, heartbeat_s=0.05, lease_s=60.0, start_s=60.0, grace_s=10.0)
"""Frequent heartbeats; the deadlines are those of a hang, not of a slow machine."""


def spec_of(ps: int, workers: int) -> ClusterSpec:
    """A cluster of the in-memory network."""
    return ClusterSpec({"ps": [f"ps{i}:1" for i in range(ps)], "worker": [f"worker{i}:1" for i in range(workers)]})


def in_thread(work: Callable[[], Any], name: str) -> Future[Any]:
    """Runs `work` in a thread of its own; the future has its answer or its exception."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as exc:
            future.set_exception(exc)

    threading.Thread(target=run, name=f"test-{name}", daemon=True).start()
    return future


def shut_down(spec: ClusterSpec, transport: MemoryTransport) -> None:
    """Tells every ps to end."""
    for task in spec.ps:
        connection = transport.connect(spec.address(task), FAST)
        connection.call("shutdown", encode(m.Shutdown("the test")), timeout_s=5.0)
        connection.close()


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class Job:
    """The ps of a job as threads, and clients as they are wanted."""

    ps: int = 1
    workers: int = 1
    timeouts: Timeouts = FAST
    transport: MemoryTransport = field(default_factory=MemoryTransport)
    runtime: Runtime = SYSTEM
    """Of all tasks."""
    said: list[str] = field(default_factory=list)
    """What the ps have said."""
    heard: list[str] = field(default_factory=list)
    """What the clients have said."""
    services: list[ParameterService] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)
    running: list[Future[str]] = field(default_factory=list)
    clients: list[JobClient] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spec = spec_of(self.ps, self.workers)

    def cluster(self, job: str, index: int) -> Cluster:
        """The cluster as one task sees it."""
        return Cluster(spec=self.spec, task=Task(job, index))

    def start(self) -> Job:
        """Starts every ps."""
        for i in range(self.ps):
            self.start_ps(i)
        return self

    def start_ps(self, index: int) -> None:
        """Starts one ps."""
        cluster = self.cluster("ps", index)
        service = ParameterService(
            cluster,
            timeouts=self.timeouts,
            say=self.said.append,
            incarnation=f"life {len(self.services)}",
            transport=self.transport,
            runtime=self.runtime,
        )
        self.services.append(service)
        self.listeners.append(self.transport.listen(cluster.address, service, self.timeouts))
        self.running.append(in_thread(service.lifecycle.run, f"ps{index}"))

    def client(self, plan: Plan, worker: int, **arguments: Any) -> JobClient:
        """A worker that has not joined yet."""
        client = JobClient(
            self.cluster("worker", worker),
            plan,
            transport=self.transport,
            timeouts=arguments.pop("timeouts", self.timeouts),
            runtime=arguments.pop("runtime", self.runtime),
            say=self.heard.append,
            **arguments,
        )
        self.clients.append(client)
        return client

    def ends(self) -> list[str]:
        """Why each ps ended."""
        return [future.result(20.0) for future in self.running]

    def close(self) -> None:
        """Ends whatever still runs."""
        for client in self.clients:
            client.leave("the test is over")
        for service in self.services:
            service.call("shutdown", b"\x81\xa6reason\xa0")
        for listener in self.listeners:
            listener.stop(2.0)
        for future in self.running:
            future.exception(20.0)


def kill(client: JobClient) -> None:
    """As if the process had ended: it does not leave, and sends no heartbeats."""
    for heartbeater in client._heartbeats.heartbeaters:  # noqa: SLF001
        heartbeater.stop()
        heartbeater._thread.join(10.0)  # noqa: SLF001
    for link in client._links:  # noqa: SLF001
        link.close()


def first_values(plan: Plan, params: PyTree) -> Callable[[], Sequence[Sequence[NDArray[Any]]]]:
    """What the chief passes to `join`."""
    return lambda: blocks_of(plan, params)


class Script:
    """A worker's stream with queued frames, for `ParameterService.stream` in the test's own thread.

    Each item is a record, a record with its body, raw bytes, `None` for a wait in which nothing comes, or a
    function that is called when its turn comes. After the last, the worker's process is gone.
    """

    peer = "a script"
    transport = "script"
    alive = True
    silent_s = 0.0
    moved_s = math.inf
    outlives_sender = False
    most_bytes = 0

    def __init__(self, *items: Any) -> None:
        self.items = deque(items)
        self.sent: list[tuple[m.Downward, list[NDArray[Any]]]] = []
        self.closed = False

    def receive(self, timeout_s: float) -> Frame | None:
        assert timeout_s > 0
        while self.items and callable(self.items[0]):
            self.items.popleft()()
        if not self.items:
            raise StreamClosed("the script is over")
        item = self.items.popleft()
        if item is None:
            return None
        record, body = item if isinstance(item, tuple) else (item, ())
        header = record if isinstance(record, bytes) else _encode(record)
        return Frame(header, tuple(_aligned(array) for array in body))

    def send(self, header: bytes, body: Sequence[NDArray[Any]] = ()) -> None:
        self.sent.append((decode_any(header, m.Downward, "the ps"), [np.array(array) for array in body]))

    def close(self) -> None:
        self.closed = True

    def refuse_more(self) -> None:
        self.closed = True

    def interrupt(self) -> None:
        self.closed = True

    @property
    def answers(self) -> list[m.Downward]:
        """The records that were sent."""
        return [record for record, _ in self.sent]

    @property
    def failure(self) -> str:
        """The message of the one failure that was sent, as the last."""
        assert isinstance(self.answers[-1], m.Failure), self.answers
        return self.answers[-1].message


def _encode(record: Any) -> bytes:
    from trainband.wire.messages.codec import encode

    return encode(record)


def _aligned(array: NDArray[Any]) -> Bytes:
    from trainband.wire.arena import aligned_memory, as_bytes

    memory = aligned_memory(array.nbytes)
    memory[:] = as_bytes(np.ascontiguousarray(array))
    return memory


PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(6, 2), "b": np.ones(2, np.float32)}
"""Small, and sliceable."""


def sgd_plan(ps: int = 1, rate: float = 1.0, policy: PlacementPolicy | None = None, params: PyTree = None) -> Plan:
    """SGD on `PARAMS`."""
    return plan_of(PARAMS if params is None else params, optax.sgd(rate), ps=ps, policy=policy)


def gradient_of(plan: Plan, value: float) -> tuple[tuple[NDArray[Any], ...], ...]:
    """A gradient with one value everywhere, as every shard's blocks."""
    return blocks_of(plan, jax.tree.map(lambda leaf: np.full(leaf.shape, value, leaf.dtype), PARAMS))
