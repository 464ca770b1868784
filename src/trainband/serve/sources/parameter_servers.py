"""ParameterServerSource: the values on a running job's parameter servers, while training continues."""

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
    """A running job. Only tensors that have changed are delivered.

    Args:
      follower: of the job.
      predictor: the function to serve.
      tracing: `example`, `inputs` and `batch`, as for `Predictor.program`.
      directory: of the job's checkpoints: the newest is served until the job can be reached. Without it, `open` then
        fails.
      say: prints lines for the user.
      stop: returns whether `open` should give up.
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
        """The job whose values were delivered last; `None` if its next version must be delivered whole."""
        self._unusable: SourceStatus | None = None
        """Set if the job's values do not fit the served model."""

    @property
    def status(self) -> SourceStatus:
        if self._unusable is not None:
            return self._unusable
        found = self._follower.status
        return SourceStatus(_STATES[found.state], found.detail, self._follower.wall_time(found.since))

    def open(self, name: str = "") -> ServedModel:
        try:
            version = self._follower.first(self._stop)
        except (PeerError, ClusterError) as exc:
            if self._directory is None or not CheckpointDirectory(self._directory, self._say).steps():
                raise
            self._say(f"serving the newest checkpoint in {self._directory} until the job can be followed: {exc}")
            return CheckpointSource(self._directory, self._predictor, tracing=self._tracing, say=self._say).open(name)
        self._job = version.job
        program = self._program(version)
        return ServedModel.of(program, name, made_at=self._follower.wall_time(version.asked_at))

    def run(self, on_version: OnVersion, stop: threading.Event) -> None:
        try:
            while (version := self._follower.next(stop.is_set)) is not None:
                self._deliver(version, on_version)
        finally:
            self._follower.close()

    def _deliver(self, version: JobVersion, on_version: OnVersion) -> None:
        is_whole = self._job != version.job
        names = version.tensors.keys() if is_whole else version.changed
        try:
            if is_whole:
                self._program(version)  # checks that it is of the served model
            on_version(
                {name: version.tensors[name] for name in names},
                version.global_step,
                source=self._source(version),
                made_at=self._follower.wall_time(version.asked_at),
            )
        except ModelError as exc:
            self._job = None
            if self._unusable is None:
                self._say(f"global step {version.global_step:,} is not served: {exc}")
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
