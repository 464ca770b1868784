"""Limits: how much of anything a task takes from another one, in one place.

They are far above what a job needs, and there so that nobody who can reach a port makes a task allocate without bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a message may hold.

    Args:
      control_bytes: of the body of a control call, where `BODY_BYTES` does not say otherwise.
      tasks: of one job in a cluster spec, and so of ps, too.
      worker_index: the largest index of a worker, a guest's included.
      guests: workers in no cluster spec that a ps remembers; those that have gone longest ago are forgotten first.
      replaced: processes in whose place another one has pushed that a ps remembers, the newest ones.
      variables: of a model.
      slices: of all variables.
      blocks: buffers in a frame: of params, optimizer state and waiting gradients together.
      dimensions: of a variable.
      elements: of one variable.
      pieces: of one leaf of the optimizer state.
      state_leaves: of the optimizer state.
      rule_settings: of an update rule.
      trainings: that a script has begun.
      fit: the largest number of a training.
      fits_missed: trainings that a ps may have missed which has been in one: a chief may have died while it began it.
      updates: that a training may ask for beyond the present version, where it asks for a number.
      readers: of the values of one ps at the same time; each may keep a version of them.
      records: of the log in one frame.
      sources: shared data sources of a job.
      name_length: characters of a variable's, a leaf's or a source's name.
      host_length: characters of a host name.
      token_length: characters of what a process has made up at random.
      path_length: characters of a path.
      text_length: characters of a message for people on the wire.
      failure_length: characters that a ps keeps of why a worker failed.
      program_bytes: of each of the two programs of an update.
      update_text_length: characters of a traced update program.
      worker_state_bytes: of what one worker must find again.
      recorded_workers: whose steps are recorded at the same time.
      frame_bytes: of the body of a frame, where whoever receives it does not know what to expect.
    """

    control_bytes: int = 1 * MIB
    tasks: int = 10_000
    worker_index: int = 999_999
    guests: int = 4_096
    replaced: int = 65_536
    variables: int = 100_000
    slices: int = 1_000_000
    blocks: int = 1_000_000
    dimensions: int = 32
    elements: int = 1 << 48
    pieces: int = 100_000
    state_leaves: int = 1_000_000
    rule_settings: int = 16
    trainings: int = 100_000
    fit: int = 1_000_000
    fits_missed: int = 8
    updates: int = 1 << 53
    readers: int = 64
    records: int = 1_000_000
    sources: int = 1_024
    name_length: int = 1_024
    host_length: int = 255
    token_length: int = 64
    path_length: int = 4_096
    text_length: int = 65_536
    failure_length: int = 2_000
    program_bytes: int = 256 * MIB
    update_text_length: int = 64 * MIB
    worker_state_bytes: int = 1 * GIB
    recorded_workers: int = 32
    frame_bytes: int = 1024 * GIB


LIMITS = Limits()

BODY_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "join": 64 * MIB,  # the description, with the traced update program as text
        "define": 1 * GIB,  # the update program, with whatever constants it has
        "invite": 1 * GIB,
        "worker_state": LIMITS.worker_state_bytes + MIB,  # may hold residuals as large as the params
        "recorded": 8 * MIB,
        "adopt": 4 * GIB,  # the worker state of all workers
    }
)
"""By action: the largest body that is decoded; `Limits.control_bytes` for the others."""


def body_bytes(action: str, limits: Limits = LIMITS) -> int:
    """The largest body of a control call."""
    return BODY_BYTES.get(action, limits.control_bytes)
