"""TrainingControl: how the chief begins, steers and ends trainings, and how the other workers follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainband.errors import RefusalCode, Refused
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.shard_link import ANY, ME, Link
from trainband.ps.worker.shard_requests import ShardRequests
from trainband.ps.worker.steering import Steering
from trainband.wire.messages import calls as m


@dataclass(eq=False)
class TrainingControl:
    """Control of training runs on all shards."""

    _membership: Membership
    _links: Sequence[Link]
    _requests: ShardRequests
    _cluster_view: ClusterView
    _steering: Steering

    def start_training(self, number: int, last_version: int, starts: Sequence[int] = ()) -> None:
        """Chief only: asks every ps for updates until its version is `last_version`, as training `number`."""
        training = self._membership.training
        training.last_version, training.starts = last_version, tuple(starts)
        for link in self._links:
            self._requests.ask(link, "begin", m.Begin(ANY, ME, number, last_version, training.starts), m.JobState)

    def await_training(self, number: int, last_version: int = m.UNLIMITED, starts: Sequence[int] = ()) -> m.JobState:
        """Waits until the chief has begun training `number` on every ps; returns ps:0's state.

        If this worker becomes the chief meanwhile, it begins the training itself, as the previous chief did on any ps,
        else until `last_version`.
        """
        membership, view = self._membership, self._cluster_view
        waiting = membership.waiting(membership.timeouts.start_s)
        while True:
            states = self.states()
            if all(state.fit >= number for state in states):
                first, training = states[0], membership.training
                training.number, training.last_version, training.starts = (
                    first.fit,
                    first.last_version,
                    first.trainings,
                )
                return first
            if view.is_chief:
                begun = max(states, key=lambda state: state.fit)
                if begun.fit >= number:
                    last_version, starts = begun.last_version, begun.trainings
                try:
                    self.start_training(max(number, begun.fit), last_version, starts)
                    continue
                except Refused as exc:
                    if exc.code is not RefusalCode.NOT_CHIEF:
                        raise  # else a ps does not know of the old chief's death, or it is back
            if all(view.chief in state.live for state in states):
                waiting.extend()  # it is alive and may evaluate or save for long
            waiting.check(f"{view.chief} to begin the training", "check that it runs")
            membership.pause()

    def finish(self) -> None:
        """Chief only: ends the training now."""
        ends = [self._requests.ask(link, "finish", m.Finish(ANY, ME), m.JobState).last_version for link in self._links]
        self._membership.training.last_version = min(ends)  # for a ps that dies now

    def steer(self, settings: Mapping[str, float]) -> None:
        """Chief only: sets scalars of the optimizer's state on every ps, from the next update on.

        Raises:
          ModelError: the state has no such scalar.
        """
        self._steering.store(settings, range(len(self._links)))
        for link in self._links:
            for steer in self._steering.of_shard(link.index):
                self._requests.ask(link, "steer", steer, m.JobState)

    def pause(self) -> None:
        """Tells every ps not to wait for this worker's next push: its data is used up."""
        self._membership.paused = True
        for link in self._links:
            self._requests.ask(link, "pause", m.Pause(ANY, ME), m.JobState)

    def states(self) -> list[m.JobState]:
        """How far every shard is."""
        return [self._requests.ask(link, "state", None, m.JobState) for link in self._links]
