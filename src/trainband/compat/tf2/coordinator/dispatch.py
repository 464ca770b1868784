"""Dispatch: for each worker a thread that sends it closures, and takes back those of a worker that has died."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainband.compat.tf1.graphs.errors import OpError
from trainband.compat.tf2.coordinator import records as r
from trainband.compat.tf2.coordinator.arrays import Reader
from trainband.compat.tf2.coordinator.closures import Closure, Closures, Program
from trainband.compat.tf2.coordinator.link import Link, error_of
from trainband.compat.tf2.coordinator.queue import ClosureQueue
from trainband.compat.tf2.coordinator.variables import PsVariables, lost
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.errors import PeerError, ProtocolError
from trainband.runtime import SYSTEM
from trainband.runtime.base import Thread
from trainband.runtime.waiting import Say, Waiting
from trainband.wire.transport import Timeouts, Transport

DEPTH = 2
"""Closures that a worker has at once: one runs while the next one is on its way."""
_IDLE_S = 0.5
_AGAIN_S = 1.0
"""Seconds between two checks whether a worker is back."""


@dataclass(slots=True)
class _Sent:
    """A closure that a worker has."""

    closure: Closure
    program: Program


class WorkerThread:
    """What the coordinator does for one worker.

    Args:
      number: of the worker.
      local: held while a closure runs in the coordinator.
    """

    def __init__(
        self,
        number: int,
        address: str,
        session: str,
        ps: Sequence[str],
        queue: ClosureQueue,
        closures: Closures,
        variables: PsVariables,
        transport: Transport,
        timeouts: Timeouts,
        local: threading.RLock,
        say: Say,
    ) -> None:
        self.name = f"worker:{number}"
        self._number = number
        self._address = address
        self._session = session
        self._ps = tuple(ps)
        self._queue = queue
        self._closures = closures
        self._variables = variables
        self._transport = transport
        self._timeouts = timeouts
        self._local = local
        self._say = say
        self._link: Link | None = None
        self._platform = ""
        self._was_lost = False
        self._defined: set[int] = set()
        self._readers: dict[int, Reader] = {}
        self._sent: deque[_Sent] = deque()
        self._thread: Thread = SYSTEM.thread(self._run, f"trainband-{self.name}")
        self._thread.start()

    def end(self) -> None:
        """Waits for the thread, once the queue is closed."""
        self._thread.join(self._timeouts.grace_s)

    def _run(self) -> None:
        while not self._queue.is_closed:
            try:
                self._connect()
                while not self._queue.is_closed:
                    self._turn()
            except PeerError as exc:
                self._lose(exc)
        if self._link is not None:
            with contextlib.suppress(PeerError):
                self._link.send(r.End())
            self._link.close()

    def _connect(self) -> None:
        """Waits until the worker is there."""
        waiting: Waiting | None = None
        for attempt in itertools.count():
            link = Link(self.name, self._address, r.FromWorker, self._transport, self._timeouts)
            try:
                link.open(r.Hello(self._session, coordinates=True))
                answer, _ = link.exchange(r.Attach(self._ps), (), self._timeouts.stall_s)
                if isinstance(answer, r.Failure):
                    if answer.ps >= 0:
                        self._queue.fail(lost(f"ps:{answer.ps}", answer.message))
                    raise error_of(answer)
                if not isinstance(answer, r.Attached):
                    raise ProtocolError(f"{self.name} answered with {type(answer).__name__}, not with Attached.")
                self._platform = answer.platform
            except (PeerError, OpError) as exc:
                link.close()
                if self._queue.is_closed:
                    return
                waiting = waiting or Waiting(None, self._say)
                waiting.check(f"{self.name} at {self._address} ({exc})" if attempt > 1 else self.name, "")
                SYSTEM.sleep(_AGAIN_S)
                continue
            if self._was_lost or (waiting is not None and attempt > 1):
                self._was_lost = False
                self._say(f"{self.name} is connected")
            self._link, self._defined, self._readers = link, set(), {}
            return

    def _turn(self) -> None:
        """Sends what there is room for, and takes an answer."""
        while len(self._sent) < DEPTH:
            closure = self._queue.take(0.0 if self._sent else _IDLE_S)
            if closure is None:
                break
            self._send(closure)
        if self._sent:
            self._receive()

    def _send(self, closure: Closure) -> None:
        try:
            counts = self._closures.count(closure, self._number)
            feeds = [one.feeds[self._number] for one in closure.iterators]
            closure.elements = [feed.take(count) for feed, count in zip(feeds, counts, strict=True)]
            program = self._closures.program(closure, self._platform)
        except BaseException as exc:  # the script's own error, which comes out of `join`
            self._queue.failed(closure, exc)
            return
        if program is None:
            self._try_here(closure)
            return
        self._sent.append(_Sent(closure, program))
        self._start(closure, program)

    def _start(self, closure: Closure, program: Program) -> None:
        assert self._link is not None
        number = program.definition.closure
        if number not in self._defined:
            self._link.send(program.definition, [np.frombuffer(program.data, np.uint8)])
            self._defined.add(number)
        self._link.send(r.Run(number, self._variables.epoch), program.inputs(closure))

    def _receive(self) -> None:
        assert self._link is not None
        answer, frame = self._link.receive()
        sent = self._sent.popleft()
        self._variables.changed()
        if isinstance(answer, r.Failure) and answer.kind == r.OTHERWISE:
            self._try_here(sent.closure)
            return
        if isinstance(answer, r.Failure):
            error = lost(f"ps:{answer.ps}", answer.message) if answer.ps >= 0 else error_of(answer)
            self._queue.failed(sent.closure, error)
            return
        number = sent.program.definition.closure
        reader = self._readers.get(number)
        if reader is None:
            traced = sent.program.traced
            avals = [one.aval for one in traced.closed.jaxpr.outvars[: traced.results]]
            reader = self._readers[number] = Reader([r.Aval(a.shape, np.dtype(a.dtype).name) for a in avals], self.name)
        sent.closure.value.settle(sent.program.result([one.copy() for one in reader(frame.body)]))
        self._queue.done()

    def _try_here(self, closure: Closure) -> None:
        """Runs a closure in the coordinator."""
        try:
            self._run_here(closure)
        except BaseException as exc:  # the script's own error, which comes out of `join`
            self._queue.failed(closure, exc)

    def _run_here(self, closure: Closure) -> None:
        elements = [
            iter([jax.tree.unflatten(one.structure, map(Tensor, one.arrays)) for one in several]).__next__
            for several in closure.elements
        ]
        with self._local, self._closures.entering():
            result = closure.call.run([Tensor(one) for one in closure.inputs], elements)
            closure.value.settle(jax.tree.map(_computed, result, is_leaf=lambda one: isinstance(one, Tensor)))
        self._variables.changed()
        self._queue.done()

    def _lose(self, exc: PeerError) -> None:
        """The worker has died: what it had comes next, on whichever worker is free."""
        if self._queue.is_closed:
            return
        if self._link is not None:
            self._link.close()
            self._link = None
        self._was_lost = True
        again = len(self._sent)
        self._say(f"{self.name} is lost ({exc}); {again} of its closures will run again")
        while self._sent:
            closure = self._sent.pop().closure
            for iterator, several in zip(closure.iterators, closure.elements, strict=True):
                iterator.feeds[self._number].give_back(several)
            closure.elements = []
            self._queue.give_back(closure)


def _computed(value: Any) -> Any:
    """A result whose value is known, so that it is of this moment."""
    if isinstance(value, Tensor):
        value.array  # noqa: B018 - computes it
    return value
