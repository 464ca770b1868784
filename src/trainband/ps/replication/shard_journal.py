"""ShardJournal: what changes a shard. Each change is a record, which the standby does again.

Not thread-safe: the service holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import ProtocolError
from trainband.ps.replication.failover import Failover, Role
from trainband.ps.replication.shard_model import Blocks, ShardModel
from trainband.ps.rules.base import Begin as BeginEvent
from trainband.ps.rules.base import Join as JoinEvent
from trainband.ps.rules.base import Leave as LeaveEvent
from trainband.ps.rules.base import Push as PushEvent
from trainband.ps.server.updater import PendingPush, Updater
from trainband.wire import messages as m
from trainband.wire import replication as r
from trainband.wire.fields import GUESTS


class ShardJournal:
    """The changes of one shard, as its primary makes them and its standby follows.

    Args:
      model: what is changed.
      failover: keeps the records for the standby.
      task: this ps, for messages.
    """

    def __init__(self, model: ShardModel, failover: Failover, task: str) -> None:
        self._model = model
        self._failover = failover
        self._task = task

    def member_joined(self, number: int) -> None:
        """A worker is in the job."""
        if self._model.updater is not None and (self._failover.holds or self._failover.role is Role.EMPTY):
            self._model.updater.advance(JoinEvent(number))
            self._log(r.Joined(number))

    def member_left(self, number: int, *, gone: bool) -> None:
        """Nobody waits for a worker any more; if it is `gone`, what it had leased goes to others."""
        if not (self._failover.holds or self._failover.role is Role.EMPTY):
            return
        self._failover.log.keep(lambda record, gradient: _owned(record, gradient, number))
        if gone:
            self._model.sources.release(number)
            self._log(r.Released(number))
        if self._model.updater is not None:
            self._model.updater.advance(LeaveEvent(number))
            self._log(r.Left(number))

    def begin(self, fit: int, last_version: int, trainings: tuple[int, ...]) -> None:
        """Wants updates until this version."""
        self._model.fit, self._model.last_version, self._model.trainings = fit, last_version, trainings
        self._model.require_updater().advance(BeginEvent(last_version))
        self._log(r.Began(fit, last_version, trainings))

    def push(self, event: PushEvent, gradient: Blocks) -> PendingPush:
        """A finite gradient, borrowed until it is answered."""
        pending = self._model.require_primary().push(event, gradient)
        self._log(r.Pushed(event.worker, event.sequence, event.version, event.examples, event.workload), gradient)
        return pending

    def assign(self, assign: m.Assign, blocks: Blocks) -> None:
        """Gives slices values; see `Shard.assign`. The blocks are borrowed."""
        self._model.require_primary().shard.assign(blocks, assign.replaced, assign.added)
        self._log(r.Assigned(assign.replaced, assign.added), tuple(np.array(block) for block in blocks))

    def steer(self, leaf: int, value: float) -> None:
        """Sets a number of the optimizer's state."""
        self._model.require_primary().shard.set_number(leaf, value)
        self._log(r.Steered(leaf, value))

    def lease(self, number: int, request: LeaseRequest) -> LeaseAnswer:
        """The next piece of a shared data source."""
        answer = self._model.sources.lease(number, request)
        self._log(r.Leased(number, request))
        return answer

    def free_reserved(self, number: int) -> None:
        """Gives to others what a checkpoint has reserved for a worker that has paused, and asks for no more."""
        if self._model.sources.release_reserved(number):
            self._log(r.Released(number, reserved=True))

    def free_pieces(self, live: Collection[int]) -> None:
        """Gives to others what is reserved for workers that have not come."""
        for number in sorted(self._model.sources.holders() - set(live)):
            self._model.sources.release(number)
            self._log(r.Released(number))

    def keep_worker_state(self, worker_state: m.LeftWorkerState) -> None:
        """What a worker must find again."""
        saver = self._model.require_saver()
        if worker_state.worker >= GUESTS:
            return  # no later job has a place for it
        saver.keep(worker_state)
        self._log(r.Kept(worker_state.worker, worker_state.sequence, worker_state.data))

    def follow(self, records: r.Records, old: int, body: Sequence[NDArray[np.uint8]]) -> None:
        """Does what the primary has done. The first `old` records were done before.

        Raises:
          ProtocolError: it did not come to the same.
        """
        updater = self._model.require_updater()
        layout = updater.shard.layout
        each, at = len(layout.blocks), 0
        for i, record in enumerate(records.records):
            blocks: Sequence[NDArray[np.uint8]] = ()
            if isinstance(record, r.Pushed | r.Assigned):
                blocks, at = body[at : at + each], at + each
            if i >= old:
                self._redo(updater, record, blocks)
        if updater.shard.version != records.version:
            raise ProtocolError(
                f"{self._task} followed {self._model.name} to version {updater.shard.version}, its primary is at "
                f"{records.version}; it gets a new snapshot."
            )

    def _redo(self, updater: Updater, record: r.LogRecord, body: Sequence[NDArray[np.uint8]]) -> None:
        match record:
            case r.Pushed(worker, sequence, version, examples, workload):
                gradient = self._model.gradient_from_wire(updater.shard.layout, body)
                updater.replay(PushEvent(worker, sequence, version, examples, workload), gradient)
            case r.Joined(worker):
                updater.advance(JoinEvent(worker))
            case r.Left(worker):
                updater.advance(LeaveEvent(worker))
            case r.Began(fit, last_version, trainings):
                self._model.fit, self._model.last_version, self._model.trainings = fit, last_version, trainings
                updater.advance(BeginEvent(last_version))
            case r.Assigned(replaced, added):
                updater.shard.assign(self._model.gradient_from_wire(updater.shard.layout, body), replaced, added)
            case r.Steered(leaf, value):
                updater.shard.set_number(leaf, value)
            case r.Leased(worker, request):
                self._model.sources.lease(worker, request)
            case r.Released(worker, False):
                self._model.sources.release(worker)
            case r.Released(worker, True):
                self._model.sources.release_reserved(worker)
            case r.Kept(worker, sequence, data):
                self._model.require_new_saver().keep(m.LeftWorkerState(worker, "", sequence, data))
            case r.Term():
                pass  # the book has it

    def _log(self, record: r.LogRecord, blocks: Blocks = ()) -> None:
        self._failover.log.append(record, blocks)


def _owned(record: r.LogRecord, gradient: Blocks, worker: int) -> Blocks:
    """A copy of the gradient, where it is this worker's: the memory that it lies in goes with its stream."""
    if isinstance(record, r.Pushed) and record.worker == worker:
        return tuple(np.array(block) for block in gradient)
    return gradient
