"""A simulated worker: the training loop and the heartbeat of `trainband.ps.client.JobClient`, without arithmetic."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tests.simulation.hands import Hands
from tests.simulation.history import Acknowledged, PushKey, Record, Trained
from tests.simulation.letters import Greeting, Letter, Timing, Values
from tests.simulation.link import JOIN_AGAIN, Link
from tests.simulation.network import Network
from tests.simulation.parts import Parts
from tests.simulation.process import Process
from trainband.data.leases import SourceSettings
from trainband.errors import DeadlineExceeded, PeerError, Refused, StreamClosed
from trainband.ps.rules.base import REPLAYED
from trainband.ps.succession import Role
from trainband.wire import messages as m
from trainband.wire import replication as r

FIT = 1
"""The number of the only training of a simulated job."""


class Work(NamedTuple):
    """What a worker is to do.

    Attributes:
      chief: whether it has the chief's duties.
      last_version: how many updates are wanted.
      source: the shared data to train on; None for data that does not matter.
      batch: examples a step, where they matter.
      step_s: a step takes up to so many seconds.
      shards: how many there are.
      replicas: how many standbys each of them has.
      parts: what it is made of.
      begin_anew: is told when the chief, as far as it can see, begins the job from a checkpoint.
    """

    chief: bool
    last_version: int
    source: SourceSettings | None
    batch: int
    step_s: float
    shards: int
    replicas: int
    parts: Parts
    begin_anew: Callable[[], None]


class _Pulse:
    """What a worker knows of its heartbeats to one ps."""

    def __init__(self) -> None:
        self.worker = -1
        """Its number there; -1 before it has joined."""


class Worker:
    """One life of a worker."""

    def __init__(
        self,
        process: Process,
        network: Network,
        work: Work,
        timing: Timing,
        dice: random.Random,
        history: list[Record],
        ended: Callable[[Worker, str], None],
    ) -> None:
        """`ended` is told when the worker's program comes to its end, and why if that is not its goal."""
        self.process = process
        self.trained_out = False
        """Whether nothing is left to do for it."""
        self._network = network
        self._links = [self._link(shard, work, timing) for shard in range(work.shards)]
        self._work = work
        self._timing = timing
        self._dice = dice
        self._history = history
        self._tell_end = ended
        self._sequence = 0
        self._fit = 0
        self._hands = Hands(work.source, process.incarnation) if work.source is not None else None
        self._arbiter = work.parts.arbiter()
        self._pulses = [_Pulse() for _ in range(work.shards)]
        self._seen: dict[int, m.JobState | None] = {}
        self._blocked_by: tuple[str, ...] = ()
        self._hurried = False
        self._paused = False
        self._reviving: set[int] = set()
        self._leaving = False
        self._begun = False
        for ps in range(work.shards):
            process.spawn(self._beat(ps))
        process.spawn(self._live())

    def _link(self, shard: int, work: Work, timing: Timing) -> Link:
        places = [(shard + i) % work.shards for i in range(1 + work.replicas)]
        return Link(self.process, self._network, shard, places, timing)

    # --- the program

    async def _live(self) -> None:
        failure = ""
        try:
            await self._train()
        except Refused as exc:
            failure = str(exc)
        await self._leave(failure)
        self._tell_end(self, failure)

    async def _train(self) -> None:
        for link in self._links:
            await self._find(link, lambda *_: True)
        for link in self._links:
            await self._find(link, lambda greeting, _: greeting.initialised)
            while True:
                with suppress(PeerError):
                    await link.open()
                    break
                await self._find(link, lambda greeting, _: greeting.initialised)
        versions, done = await self._exchange([m.Pull()] * len(self._links))
        await self._await_begin()
        while not done:
            batch = None
            if self._hands is not None:
                batch = await self._next_batch()
                if batch is None:
                    await self._end_of_data()
                    break
            await self.process.sleep(self._dice.uniform(0.2, 1.0) * self._work.step_s)
            self._sequence, self._paused = self._sequence + 1, False
            examples = 1 if batch is None else batch[2] - batch[1]
            pushes = [m.Push(self._sequence, version, examples, 0.0, True, self._fit) for version in versions]
            versions, done = await self._exchange(pushes)
            if batch is not None and self._hands is not None:
                self._note_trained(*batch)
        self.trained_out = True

    async def _leave(self, failure: str) -> None:
        for ps, pulse in enumerate(self._pulses):
            if pulse.worker >= 0:
                self._seen[ps] = None
                with suppress(PeerError):  # its lease ends without a word, too
                    self._seen[ps] = await self._tell(ps, "leave", failure)
        for link in self._links:
            link.close()
        patience = 0.0 if failure else 3 * self._timing.lease_s
        while self._is_arbiter() and patience > 0.0:
            patience -= self._timing.poll_s
            await self.process.sleep(self._timing.poll_s)
        self._leaving = True

    def _is_arbiter(self) -> bool:
        """Whether some shard has not named another, who could be: until it has, it may need this worker's word."""
        return any(
            seat.reign.arbiter == self.process.incarnation and seat.reign.standby != r.NOBODY
            for state in self._seen.values()
            if state is not None and any(task != self.process.name for task in state.live)
            for seat in state.seats
        )

    async def _set_up(self, link: Link) -> None:
        """Chief only, before it trains: gives a shard that nobody has its values."""
        if not self._begun:
            self._work.begin_anew()
        if link.at:
            link.move()
            await self._join_once(link)
        await link.call("adopt", Values(not self._begun))

    async def _await_begin(self) -> None:
        if self._work.chief:
            self._begun = True
            for link in self._links:
                await self._ask(link, "begin", m.Begin(-1, FIT, self._work.last_version))
        else:
            for link in self._links:
                while (await self._ask(link, "state")).fit < FIT:
                    await self.process.sleep(self._timing.poll_s)
        self._fit = FIT

    # --- where a shard is

    async def _find(self, link: Link, until: Callable[[Greeting, bool], bool]) -> Greeting:
        """Joins whichever ps has the shard; `until`: of an answer, and whether no ps has it: whether that will do."""
        without: set[int] = set()
        while True:
            try:
                greeting = await self._join_once(link)
                (without.add if greeting.empty else without.discard)(link.ps)
                if not link.life:
                    link.life = greeting.life
                self._begun = self._begun or greeting.fit > 0
                nobody = len(without) == len(link.places)
                if until(greeting, nobody):
                    return greeting
                if self._work.chief and greeting.initialised and greeting.fit < self._fit:
                    await link.call("begin", m.Begin(-1, FIT, self._work.last_version))
                    continue
                if nobody and self._work.chief and not self._fit:
                    without.clear()
                    await self._set_up(link)
                    continue
            except Refused as exc:
                if not any(words in str(exc) for words in JOIN_AGAIN):
                    raise  # another process has this worker's name
            except PeerError:
                without.discard(link.ps)
            if len(link.places) > 1:
                link.move()
            await self.process.sleep(self._timing.poll_s)

    async def _join_once(self, link: Link) -> Greeting:
        timeout_s = self._timing.call_s if len(link.places) == 1 else self._timing.heartbeat_s
        greeting: Greeting = await link.call("join", self._paused, timeout_s)
        link.worker, link.epoch = greeting.worker, greeting.epoch
        self._pulses[link.ps].worker = greeting.worker
        self._sequence = max(self._sequence, greeting.last_sequence)
        return greeting

    def _is_ready(self, greeting: Greeting, _: bool) -> bool:
        return greeting.initialised and greeting.fit >= self._fit

    def _superseded(self, link: Link) -> bool:
        """Whether another ps than the one that this worker waits for holds the shard, in a later epoch."""
        epochs = {link.ps: link.epoch}
        for ps, state in self._seen.items():
            for seat in state.seats if state is not None else ():
                if seat.shard == link.shard and seat.role == Role.PRIMARY.value:
                    epochs[ps] = max(epochs.get(ps, 0), seat.reign.epoch)
        return max(epochs.values()) > epochs[link.ps]

    # --- exchanges

    async def _exchange(self, frames: Sequence[Any]) -> tuple[list[int], bool]:
        """Sends each ps its frame, then gets the answers; the versions, and whether every ps is done."""
        for link, frame in zip(self._links, frames, strict=True):
            with suppress(StreamClosed):  # `receive` finds it
                link.send(frame)
        versions, done = [], True
        for link in self._links:
            answer = await self._receive(link)
            versions.append(answer.version)
            done = done and answer.done
        return versions, done

    async def _receive(self, link: Link) -> m.Params:
        died, sequence = False, link.sequence
        while True:
            try:
                answer = await self._answer(link)
            except StreamClosed:
                self._hurried = True
                died = await self._is_back(link) or died
                self._hurried = False
                continue
            if sequence:
                applied = answer.outcome == m.APPLIED and not died
                before = answer.detail == REPLAYED and not died
                key = PushKey(link.worker, self.process.incarnation, sequence)
                now = self.process.now
                self._history.append(Acknowledged(now, link.shard, key, applied, answer.version, before))
            return answer

    async def _answer(self, link: Link) -> m.Params:
        answer = await link.receive()
        if answer is None:
            while answer is None:
                if self._superseded(link):
                    raise StreamClosed(f"another ps holds shard {link.shard} now.")
                await self._see_whom(link)
                answer = await link.receive()
            self._blocked_by = ()
        return answer

    async def _see_whom(self, link: Link) -> None:
        """For whom this worker waits."""
        with suppress(PeerError):
            state: m.JobState = await link.call("state", None, self._timing.heartbeat_s)
            self._blocked_by = tuple(task for task in state.waiting_for if task != self.process.name)

    async def _is_back(self, link: Link) -> bool:
        """Waits for a ps that is gone, and sends the last request again; returns whether it had died meanwhile."""
        link.close()
        greeting = await self._find(link, self._is_ready)
        died = greeting.life != link.life
        if died:
            link.life = greeting.life
            link.request = m.Pull()
        with suppress(PeerError):  # `receive` finds it
            await link.open()
            link.send(link.request)
        return died

    async def _ask(self, link: Link, action: str, body: Any = None) -> Any:
        """A control call, until it is answered by whoever holds the shard.

        Raises:
          Refused: it is no good there.
        """
        while True:
            try:
                answer = await link.call(action, body)
                if not isinstance(answer, m.JobState) or answer.initialised:
                    return answer
            except Refused as exc:
                if not any(words in str(exc) for words in JOIN_AGAIN):
                    raise
            except DeadlineExceeded:
                pass  # the real timeout is so long that a worker gives up
            except PeerError:
                pass
            await self.process.sleep(self._timing.poll_s)
            link.close()
            await self._find(link, self._is_ready)

    # --- data

    async def _next_batch(self) -> tuple[tuple[int, int], int, int] | None:
        assert self._hands is not None
        paused = False
        while (batch := self._hands.batch(self._work.batch)) is None:
            answer = await self._lease(want=True)
            if answer.kind == "end":
                return None
            if answer.kind == "wait":
                if not paused:
                    paused = True
                    await self._pause()
                await self.process.sleep(self._timing.poll_s)
        return batch

    async def _lease(self, *, want: bool) -> Any:
        assert self._hands is not None
        request = self._hands.request(want=want)
        link = self._links[0]
        answer = await self._ask(link, "lease", request)
        self._hands.received(request, answer)
        return answer

    def _note_trained(self, piece: tuple[int, int], start: int, stop: int) -> None:
        assert self._hands is not None
        number = self._links[0].worker
        self._history.append(Trained(self.process.now, number, self.process.incarnation, piece, start, stop))
        self._hands.trained(piece, stop)

    async def _pause(self) -> None:
        self._paused = True
        for link in self._links:
            await self._ask(link, "pause")

    async def _end_of_data(self) -> None:
        await self._lease(want=False)
        await self._pause()
        if not self._work.chief:
            return
        for link in self._links:
            while any(task != self.process.name for task in (await self._ask(link, "state")).at_work):
                await self.process.sleep(self._timing.poll_s)
        for link in self._links:
            await self._ask(link, "finish")

    # --- the heart

    async def _beat(self, ps: int) -> None:
        pulse = self._pulses[ps]
        while True:
            await self.process.sleep(self._timing.hurry_s if self._hurried else self._timing.heartbeat_s)
            if self._leaving:
                return
            if pulse.worker < 0:
                if self._fit:  # it was not there when this worker came
                    await self._join_at(ps)
                continue
            try:
                state = await self._tell(ps, "heartbeat", (self._blocked_by, self._paused))
            except Refused:
                await self._join_at(ps)
                continue
            except PeerError:
                self._seen[ps] = None
                continue
            await self._heard(ps, state)

    async def _join_at(self, ps: int) -> None:
        with suppress(PeerError):
            greeting: Greeting = await self._tell(ps, "join", self._paused)
            self._pulses[ps].worker = greeting.worker

    async def _tell(self, ps: int, action: str, body: Any) -> Any:
        letter = Letter(self.process.name, self.process.incarnation, self._pulses[ps].worker, body)
        return await self._network.call(self.process, f"ps:{ps}", ps, action, letter, self._timing.heartbeat_s)

    async def _heard(self, ps: int, state: m.JobState) -> None:
        """An answer to a heartbeat."""
        self._seen[ps] = state
        for seat in state.seats:
            if seat.petition is not None and seat.petition.arbiter == self.process.incarnation:
                await self._decide(ps, seat.petition)
        if self._work.chief and self._fit:
            if state.initialised and state.fit < self._fit:
                self._start_reviving(ps)  # it has got its values, but not what came after
            for link in self._links:
                if self._is_nowhere(link):
                    self._start_reviving(link.shard)

    async def _decide(self, ps: int, petition: r.Petition) -> None:
        yes = self._arbiter.grants(petition)
        worker, incarnation = self._pulses[ps].worker, self.process.incarnation
        letter = Letter(self.process.name, incarnation, worker, r.Grant(worker, incarnation, petition.epoch, yes))
        with suppress(PeerError):  # it will ask again
            await self._network.call(
                self.process, f"ps:{ps}", petition.shard, "grant", letter, self._timing.heartbeat_s
            )

    def _is_nowhere(self, link: Link) -> bool:
        """Whether every ps that may have the shard has said that it has not."""
        for ps in link.places:
            state = self._seen.get(ps)
            if state is None or any(s.shard == link.shard and s.role != Role.EMPTY.value for s in state.seats):
                return False
        return True

    def _start_reviving(self, shard: int) -> None:
        if shard not in self._reviving:
            self._reviving.add(shard)
            self.process.spawn(self._revive(shard))

    async def _revive(self, shard: int) -> None:
        """Chief only: gives a shard that nobody has any more its part of the last checkpoint."""
        link = self._link(shard, self._work, self._timing)
        with suppress(PeerError):  # the next heartbeat tries again
            greeting = await self._join_once(link)
            if not greeting.initialised:
                await link.call("adopt", Values(False))
            if greeting.fit < self._fit:
                await link.call("begin", m.Begin(-1, FIT, self._work.last_version))
        self._reviving.discard(shard)
