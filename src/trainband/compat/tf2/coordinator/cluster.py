"""Cluster: the coordinator's side of a job: the streams to its servers, and the threads that send closures."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.joined import report_joined
from trainband.compat.tf2.coordinator import records as r
from trainband.compat.tf2.coordinator.closures import Closures
from trainband.compat.tf2.coordinator.current_worker import on_worker
from trainband.compat.tf2.coordinator.dispatch import WorkerThread
from trainband.compat.tf2.coordinator.feeds import Feed, PerWorkerDataset
from trainband.compat.tf2.coordinator.link import Link, network_of
from trainband.compat.tf2.coordinator.queue import ClosureQueue
from trainband.compat.tf2.coordinator.remote_value import RemoteValue
from trainband.compat.tf2.coordinator.spec import Tasks
from trainband.compat.tf2.coordinator.variables import PsVariables
from trainband.errors import PeerError
from trainband.runtime import SYSTEM
from trainband.runtime.waiting import Say, Waiting, say_on_stderr
from trainband.wire.transport import Timeouts

_AGAIN_S = 0.3


class Cluster:
    """The servers of a job, as the coordinator drives them.

    Args:
      tasks: where they are. All ps must answer within `Timeouts.start_s`; workers may come later.
      entering: what closures are traced in.
      partitioner: into how many parts a variable is divided along each axis.

    Raises:
      DeadlineExceeded: a ps has not come up.
    """

    def __init__(
        self,
        tasks: Tasks,
        entering: Callable[[], AbstractContextManager[Any]],
        partitioner: Callable[..., Sequence[int]] | None = None,
        timeouts: Timeouts | None = None,
        say: Say = say_on_stderr,
    ) -> None:
        self.tasks = tasks
        self._timeouts = timeouts or Timeouts()
        self._say = say
        self._session = SYSTEM.token()
        transport = network_of(Identity("chief:0", self._session))
        report_joined()
        self._transport = transport
        links = [self._linked(number, address) for number, address in enumerate(tasks.ps)]
        self.variables = PsVariables(links, self._timeouts, partitioner)
        self._closures = Closures(self.variables, self._looked, entering)
        self._queue = ClosureQueue()
        self._local = threading.RLock()
        self.feeds: weakref.WeakSet[Feed] = weakref.WeakSet()
        """The feeds of its workers."""
        self._entering = entering
        self._threads = self._started()
        atexit.register(self.close)

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return len(self.tasks.workers)

    def schedule(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> RemoteValue:
        """Has some worker run a function, once the earlier ones have been begun.

        Raises:
          Exception: what an earlier closure has raised.
        """
        closure = self._closures.closure(function, args, kwargs)
        self._queue.put(closure)
        self.variables.changed()
        return closure.value

    def join(self) -> None:
        """Waits until all closures have run.

        Raises:
          Exception: what one of them has raised.
        """
        self._queue.wait()
        self._looked()

    @property
    def is_done(self) -> bool:
        """Whether all closures have run. Raises what one of them has raised."""
        done = self._queue.is_done
        if done:
            self._looked()
        return done

    def datasets(self, make: Callable[[], Any]) -> PerWorkerDataset:
        """A dataset for each worker, which a function makes."""

        def of(worker: int) -> Any:
            with on_worker(worker), self._entering():
                return make()

        return PerWorkerDataset(of, self.workers, self.feeds.add)

    def close(self) -> None:
        """Tells all servers that the job has ended. Idempotent."""
        if self._queue.is_closed:
            return
        atexit.unregister(self.close)
        self._queue.close()
        for feed in list(self.feeds):
            feed.close()
        for thread in self._threads:
            thread.end()
        self.variables.close()

    def _looked(self) -> None:
        """The script knows that closures have run: what comes after them must see what they have done."""
        self.variables.epoch += 1

    def _started(self) -> list[WorkerThread]:
        return [
            WorkerThread(
                number,
                address,
                self._session,
                self.tasks.ps,
                self._queue,
                self._closures,
                self.variables,
                self._transport,
                self._timeouts,
                self._local,
                self._say,
            )
            for number, address in enumerate(self.tasks.workers)
        ]

    def _linked(self, number: int, address: str) -> Link:
        waiting = Waiting(self._timeouts.start_s, self._say)
        while True:
            link = Link(f"ps:{number}", address, r.FromPs, self._transport, self._timeouts)
            try:
                link.open(r.Hello(self._session, coordinates=True))
                link.ask(r.Commit(), (), self._timeouts.connect_s)
                return link
            except PeerError as exc:
                link.close()
                waiting.check(f"ps:{number} at {address} to come up ({exc})", "check that it runs")
                SYSTEM.sleep(_AGAIN_S)
