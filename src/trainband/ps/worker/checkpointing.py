"""The chief's side of checkpoints: it asks every ps for its part, and puts what came back together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from trainband.checkpoint import Checkpoint, Part, Piece
from trainband.errors import CheckpointError, DamagedCheckpoint, DeadlineExceeded, RefusalCode, Refused
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.waiting import Say, Waiting
from trainband.wire import messages as m

Record = TypeVar("Record")

ANY = -1
"""In a record's field `worker`: to be filled in, for each ps has numbers of its own."""

ME = ""
"""In a record's field `incarnation`: to be filled in."""

POLL_S = 0.02
"""Between two questions to a ps that is reading."""

WORKER_STATE_S = 10.0
"""How long a checkpoint whose parts are all written waits for a worker's worker state: one slow worker must not keep it
from being committed; what was known of it before goes in instead."""


class Ps(Protocol):
    """One ps, as the chief asks it."""

    @property
    def name(self) -> str: ...

    def ask(self, action: str, record: Struct, kind: type[Record]) -> Record:
        """The answer to a record; its fields `worker` and `incarnation` are filled in."""
        ...


@dataclass(frozen=True, slots=True)
class SavedParts:
    """What all the ps have written.

    Attributes:
      worker state: of each worker, by its number.
      sources: the shared data sources, as text.
      missing: workers whose worker state is older than the checkpoint.
    """

    parts: tuple[Part, ...]
    worker_state: Mapping[int, bytes] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def global_step(self) -> int:
        """The version of ps:0's part."""
        return self.parts[0].version


class JobSaving:
    """A checkpoint being written by all ps. Thread-safe where the ps are."""

    def __init__(self, ps: Sequence[Ps], directory: Path, at: int, runtime: Runtime = SYSTEM) -> None:
        """Orders it: each ps writes when its version is `at`, at once if it is.

        Raises:
          Refused: a ps is still writing the one before.
          PeerError: a ps cannot be reached.
        """
        self._ps = ps
        self._token = runtime.token()
        self._clock = runtime.clock
        self.begun_at: float | None = None
        """When its version had come, as nearly as is known."""
        self._written_at: float | None = None
        self._waiting = set(range(len(ps)))
        """The shards that have not begun to write, as far as is known."""
        # The last first: by the time that ps:0, which asks the workers for their worker state, knows of it, all do.
        for one in reversed(ps):
            one.ask("save", m.Save(ANY, ME, self._token, str(directory), at), m.SaveState)

    def waits(self) -> bool:
        """Whether a ps waits for its version, and none is writing now.

        Raises:
          PeerError: a ps cannot be reached.
        """
        phases = {self._ask(one, worker_state=False).phase for one in self._ps}
        return m.ARMED in phases and m.WRITING not in phases

    def poll(self) -> SavedParts | None:
        """What was written, once all of it is; `None` before.

        Raises:
          CheckpointError: a ps could not write its part.
          Overtaken: a ps does not know the order any more, and had not begun to follow it: it can be given again.
          PeerError: a ps cannot be reached.
        """
        states = [self._ask(one, worker_state=False) for one in self._ps]
        for shard, (one, state) in enumerate(zip(self._ps, states, strict=True)):
            if state.phase == m.FORGOTTEN and shard in self._waiting:
                raise Overtaken(f"{one.name} has died, or was given up, before it began to write its part.")
            if state.phase != m.ARMED:
                self._waiting.discard(shard)
            if state.phase == m.FORGOTTEN:
                raise Refused(f"{one.name} has died, or was given up, while the checkpoint was written.")
            if state.phase == m.FAILED:
                raise CheckpointError(f"{one.name} could not write its part of the checkpoint: {state.failure}")
        if self.begun_at is None and any(state.phase != m.ARMED for state in states):
            self.begun_at = self._clock()
        if any(state.phase != m.WRITTEN for state in states):
            return None
        if self._written_at is None:
            self._written_at = self._clock()
        if states[0].awaited and self._clock() - self._written_at < WORKER_STATE_S:
            return None
        first = self._ask(self._ps[0], worker_state=True)
        parts = tuple(state.part for state in states if state.part is not None)
        return SavedParts(parts, first.worker_state, first.sources, first.awaited)

    def _ask(self, one: Ps, *, worker_state: bool) -> m.SaveState:
        try:
            return one.ask("save_state", m.SaveQuestion(ANY, ME, self._token, worker_state), m.SaveState)
        except Refused as exc:
            if exc.code is RefusalCode.MOVED:  # an order does not move with its shard
                return m.SaveState(m.FORGOTTEN)
            raise


class Overtaken(Refused):
    """Somebody else was faster, or the ps has died meanwhile: what is to be done must be looked at again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreFrom:
    """Where a job gets its first values from, if there are any.

    Attributes:
      candidates: checkpoints, the best first; iterating may say what is wrong with one that cannot be used.
      worker state: what each worker, by its number, finds again of a checkpoint.
      optimizer: whether the optimizer state is restored, or begins anew.
    """

    candidates: Callable[[], Iterable[Checkpoint]]
    worker_state: Callable[[Checkpoint], Mapping[int, bytes]]
    optimizer: bool = True


def restore_job(
    ps: Sequence[Ps],
    wanted: Sequence[Piece],
    source: RestoreFrom,
    say: Say,
    runtime: Runtime,
    stall_s: float,
    at: int | None = None,
    *,
    alone: bool = False,
) -> Checkpoint | None:
    """Restores these ps from the first checkpoint that is whole; `None` where there is none.

    Args:
      wanted: every piece of every shard.
      stall_s: how long a ps may be silent while it reads.
      alone: whether the job is under way, and these ps have come back into it.
      at: the only step that will do, where other ps of the job have values already.

    Raises:
      ModelMismatch: the checkpoint is of another model.
      CheckpointError: a ps cannot read it, though it is not damaged.
      Overtaken: a ps does not know of it any more: it is another process, or somebody else has restored it.
    """
    for checkpoint in source.candidates():
        if at is not None and checkpoint.global_step != at:
            continue
        checkpoint.require(wanted, params_only=not source.optimizer)
        token = runtime.token()
        for one in ps:
            one.ask("restore", m.Restore(ANY, ME, token, str(checkpoint.path), source.optimizer), m.RestoreState)
        states = [_read(one, token, checkpoint, say, runtime, stall_s) for one in ps]
        for one, state in zip(ps, states, strict=True):
            if state.forgotten:
                raise Overtaken(
                    f"{one.name} has died, or was given its values by another, while it read {checkpoint.path}."
                )
        damaged = next((state for state in states if state.failure and state.damaged), None)
        if damaged is not None:
            say(f"{checkpoint.path} is damaged ({damaged.failure}); the checkpoint before it is tried")
            continue
        for state in states:
            if state.failure:
                raise CheckpointError(f"{checkpoint.path} cannot be restored: {state.failure}")
        try:
            step, worker_state = checkpoint.global_step, dict(source.worker_state(checkpoint))
        except DamagedCheckpoint as exc:
            say(f"{checkpoint.path} is damaged ({exc}); the checkpoint before it is tried")
            continue
        # ps:0 last: when the other workers find it initialised, the others are.
        for one in reversed(ps[1:]):
            one.ask("adopt", m.Adopt(ANY, ME, token, step, alone=alone), m.Joined)
        first = m.Adopt(ANY, ME, token, step, worker_state, dict(checkpoint.manifest.sources), alone)
        ps[0].ask("adopt", first, m.Joined)
        return checkpoint
    return None


def _read(one: Ps, token: str, checkpoint: Checkpoint, say: Say, runtime: Runtime, stall_s: float) -> m.RestoreState:
    waiting = Waiting(stall_s, say, runtime.clock)
    while True:
        try:
            state = one.ask("restore_state", m.RestoreQuestion(ANY, ME, token), m.RestoreState)
            if state.done:
                return state
            waiting.extend()  # it answers, so it reads
        except DeadlineExceeded:
            pass  # it may be busy
        waiting.check(f"{one.name} to read its part of {checkpoint.path}", "check that it runs")
        runtime.sleep(POLL_S)
