"""Checkpoints for tests: shards that save and restore without a job around them."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.ps.plans import blocks_of

from trainband.checkpoint import Checkpoint, CheckpointDirectory, Manifest, Part
from trainband.job.checkpoints import RestoreFrom
from trainband.model.variables import PyTree
from trainband.ps.program.compiled_program import CompiledProgram
from trainband.ps.shard.allowed_directories import AllowedDirectories
from trainband.ps.shard.saver import ShardSaver
from trainband.ps.shard.shard import Shard
from trainband.ps.worker.plan import Plan
from trainband.wire.messages import calls as m

WAIT_S = 20.0
"""For what takes milliseconds."""


class OnePs:
    """The shard and the saver of one ps."""

    def __init__(self, plan: Plan, index: int = 0) -> None:
        optimizer = plan.shard_optimizer(index)
        trained = [block.trained for block in plan.layout.shards[index].blocks]
        self.plan = plan
        self.index = index
        self.lock = threading.Lock()
        self.seen: Mapping[int, int] = {}
        self.sources: Mapping[str, str] = {}
        self.shard = Shard(plan.layout.shards[index], CompiledProgram(optimizer.export(), "a test", trained))
        self.saver = ShardSaver(
            self.shard,
            optimizer.state_contents,
            (index, len(plan.layout.shards)),
            self.lock,
            directories=AllowedDirectories([tempfile.gettempdir()], f"ps:{index}"),
            seen=lambda: self.seen,
            sources=lambda: self.sources,
        )

    def initialise(self, params: PyTree) -> OnePs:
        self.shard.initialise(blocks_of(self.plan, params)[self.index])
        return self

    def update(self, gradient: PyTree) -> None:
        """As a service does: under the lock, and then the saver hears of it."""
        with self.lock:
            self.shard.update(blocks_of(self.plan, gradient)[self.index])
            self.saver.after_update()

    def order(self, directory: Path, at: int = 0, token: str = "one") -> None:
        with self.lock:
            self.saver.save(m.Save(0, "a life", token, str(directory), at))

    def state(self, token: str = "one", live: Sequence[int] = (), worker_state: bool = True) -> m.SaveState:
        with self.lock:
            return self.saver.state(
                m.SaveQuestion(0, "a life", token, worker_state), live, lambda number: f"worker:{number}"
            )

    def saved(self, token: str = "one") -> m.SaveState:
        """When what is under way has ended."""
        self.saver.close(WAIT_S)
        return self.state(token)

    def save(self, directory: Path) -> Part:
        """A part at once."""
        token = directory.name
        self.order(directory, token=token)
        state = self.saved(token)
        assert state.part is not None, state.failure
        return state.part

    def read(self, checkpoint: Path, token: str = "one", optimizer: bool = True) -> m.RestoreState:
        with self.lock:
            self.saver.restore(m.Restore(0, "a life", token, str(checkpoint), optimizer))
        self.saver.close(WAIT_S)
        with self.lock:
            return self.saver.restore_state(token)

    def restore(self, checkpoint: Checkpoint, optimizer: bool = True) -> OnePs:
        state = self.read(checkpoint.path, optimizer=optimizer)
        assert (state.done, state.failure) == (True, "")
        with self.lock:
            self.saver.adopt(m.Adopt(0, "a life", "one", checkpoint.global_step))
        return self


def commit(directory: CheckpointDirectory, partial: Path, parts: Sequence[Part], **fields: Any) -> Checkpoint:
    """Makes a checkpoint of the parts."""
    about: dict[str, Any] = {"created_at": 1.0, "trainband": "a test", "strategy": "a test", **fields}
    return directory.commit(partial, Manifest(global_step=parts[0].version, parts=tuple(parts), **about))


def saved_job(directory: CheckpointDirectory, tasks: Sequence[OnePs], **fields: Any) -> Checkpoint:
    """A checkpoint of all these ps as they are."""
    partial = directory.create_partial(tasks[0].shard.version)
    return commit(directory, partial, [one.save(partial) for one in tasks], **fields)


def source_of(directory: CheckpointDirectory, optimizer: bool = True) -> RestoreFrom:
    """What a chief restores from, with no worker state."""
    return RestoreFrom(candidates=directory.candidates, worker_state=lambda _: {}, optimizer=optimizer)


def tensors_of(checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
    """Every tensor and its bytes."""
    for name in checkpoint.manifest.tensors:
        yield name, checkpoint.read(name).tobytes()
