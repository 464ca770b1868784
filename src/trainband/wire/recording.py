"""The records with which steps of a running job are recorded, for somebody who looks at it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from trainband.runtime.step_recording import StepRecording
from trainband.wire import fields as f
from trainband.wire.limits import LIMITS

MOST_STEPS = 200

Steps = Annotated[int, Meta(ge=1, le=MOST_STEPS)]


class RecordingOrder(Struct, frozen=True):
    """Which steps are to be recorded: the next `steps` of each of these workers."""

    order: f.Token
    """Random."""
    steps: Steps
    workers: Annotated[tuple[f.PeerName, ...], Meta(max_length=LIMITS.recorded_workers)]


class RecordSteps(Struct, frozen=True):
    """`record_steps` -> `RecordingOrder`: somebody wants to see some steps in detail."""

    steps: Steps


class Recorded(Struct, frozen=True):
    """`recorded` -> `JobState`: what a worker has recorded."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    order: f.Token
    recording: StepRecording


class Recordings(Struct, frozen=True):
    """`recordings` (asked with an empty body) -> `Recordings`: what has come of the order that was given last."""

    order: RecordingOrder | None = None
    recordings: Annotated[tuple[StepRecording, ...], Meta(max_length=LIMITS.recorded_workers)] = ()
    complete: bool = True
    """Whether nothing more is awaited: the others have left, or train no more."""
