"""Records for recording steps of a running job on request."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from trainband.runtime.step_recording import StepRecording
from trainband.wire.limits import LIMITS
from trainband.wire.messages import fields as f

MOST_STEPS = 200

Steps = Annotated[int, Meta(ge=1, le=MOST_STEPS)]


class RecordingOrder(Struct, frozen=True):
    """Which steps to record: the next `steps` of each of these workers."""

    order: f.Token
    """Random."""
    steps: Steps
    workers: Annotated[tuple[f.PeerName, ...], Meta(max_length=LIMITS.recorded_workers)]


class RecordSteps(Struct, frozen=True):
    """`record_steps` -> `RecordingOrder`: requests a detailed record of some steps."""

    steps: Steps


class Recorded(Struct, frozen=True):
    """`recorded` -> `JobState`: a worker's recording."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    order: f.Token
    recording: StepRecording


class Recordings(Struct, frozen=True):
    """`recordings` (asked with an empty body) -> `Recordings`: the results of the latest order."""

    order: RecordingOrder | None = None
    recordings: Annotated[tuple[StepRecording, ...], Meta(max_length=LIMITS.recorded_workers)] = ()
    complete: bool = True
    """Whether all are in: the other workers have left or no longer train."""
