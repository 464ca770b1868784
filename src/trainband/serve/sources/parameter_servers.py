"""ParameterServerSource: the values that a running job's parameter servers hold, while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainband.checkpoint import CheckpointDirectory
from trainband.errors import ClusterError, ModelError, PeerError
from trainband.model.predictor import Predictor
from trainband.ps.reader.follower import Follower, FollowState
from trainband.ps.reader.job_version import JobVersion
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.serve.model import ServedModel
from trainband.serve.sources.base import OnVersion, SourceState, SourceStatus
from trainband.serve.sources.checkpoints import CheckpointSource

_STATES: Mapping[FollowState, SourceState] = {
    FollowState.WAITING: SourceState.UNREACHABLE,
    FollowState.FOLLOWING: SourceState.FOLLOWING,
    FollowState.UNREACHABLE: SourceState.UNREACHABLE,
    FollowState.ENDED: SourceState.ENDED,
    FollowState.OTHER_MODEL: SourceState.FAILED,
}


class ParameterServerSource:
    """A job that runs. Only tensors that have changed are handed over.

    Args:
      follower: of the job.
      predictor: the function that is served.
      tracing: `example`, `inputs` and `batch`, as for `Predictor.program`.
      directory: of the job's checkpoints: the newest is served until the job can be reached. Without it, `open` fails
        where that cannot be done.
      say: takes lines for the user.
      stop: whether `open` is to give up.
    """

    def __init__(
        self,
        follower: Follower,
        predictor: Predictor,
        *,
        tracing: dict[str, Any] | None = None,
        directory: str | Path | None = None,
        say: Say = say_on_stderr,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._follower = follower
        self._predictor = predictor
        self._tracing = tracing or {}
        self._directory = None if directory is None else Path(directory)
        self._say = say
        self._stop = stop
        self._job: str | None = None
        """The job whose values were handed over last; `None` where its next version is to be handed over whole."""
        self._unusable: SourceStatus | None = None
        """Where the job's values are not those of what is served."""

    @property
    def status(self) -> SourceStatus:
        """See `VersionSource`."""
        if self._unusable is not None:
            return self._unusable
        found = self._follower.status
        return SourceStatus(_STATES[found.state], found.detail, self._follower.wall_time(found.since))

    def open(self, name: str = "") -> ServedModel:
        """See `VersionSource`."""
        try:
            version = self._follower.first(self._stop)
        except (PeerError, ClusterError) as exc:
            if self._directory is None or not CheckpointDirectory(self._directory, self._say).steps():
                raise
            self._say(f"serves the newest checkpoint in {self._directory} until there is a job to follow: {exc}")
            return CheckpointSource(self._directory, self._predictor, tracing=self._tracing, say=self._say).open(name)
        self._job = version.job
        program = self._program(version)
        return ServedModel.of(program, name, made_at=self._follower.wall_time(version.asked_at))

    def run(self, on_version: OnVersion, stop: threading.Event) -> None:
        """See `VersionSource`."""
        try:
            while (version := self._follower.next(stop.is_set)) is not None:
                self._hand_over(version, on_version)
        finally:
            self._follower.close()

    def _hand_over(self, version: JobVersion, on_version: OnVersion) -> None:
        is_whole = self._job != version.job
        names = version.tensors.keys() if is_whole else version.changed
        try:
            if is_whole:
                self._program(version)  # whether it is of the model that is served
            on_version(
                {name: version.tensors[name] for name in names},
                version.global_step,
                source=self._source(version),
                made_at=self._follower.wall_time(version.asked_at),
            )
        except ModelError as exc:
            self._job = None
            if self._unusable is None:
                self._say(f"global step {version.global_step} is not served: {exc}")
                self._unusable = SourceStatus(SourceState.FAILED, str(exc), time.time())
            return
        self._job, self._unusable = version.job, None

    def _program(self, version: JobVersion) -> Any:
        return self._predictor.program(
            version.tensors, source=self._source(version), global_step=version.global_step, **self._tracing
        )

    def _source(self, version: JobVersion) -> str:
        where = f"the job at {self._follower.address}, global step {version.global_step}"
        return where if version.is_cut else f"{where} (shards at {', '.join(map(str, version.versions))})"
