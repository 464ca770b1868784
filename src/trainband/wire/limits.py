"""Limits: how much of anything a task accepts from another, in one place.

They are far above the needs of a job, and keep a client that reaches a port from making a task allocate without bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits on the content of messages: the largest number of each.

    Args:
      control_bytes: bytes in the body of a control call, unless `BODY_BYTES` overrides it.
      tasks: per job in a cluster spec, and thus ps.
      worker_index: the largest index of a worker, including elastic workers.
      elastic_workers: remembered by a ps; those that left first are forgotten first.
      replaced: replaced worker processes that a ps remembers, the newest ones.
      variables: per model.
      slices: of all variables together.
      blocks: buffers in a frame: of params, optimizer state and waiting gradients together.
      dimensions: per variable.
      elements: per variable.
      pieces: per leaf of the optimizer state.
      state_leaves: in the optimizer state.
      rule_settings: per update rule.
      tables: per job.
      trainings: per script.
      fit: the largest sequence number of a training run.
      fits_missed: training runs that a ps may miss after one it took part in: a chief may have died beginning them.
      updates: updates that a training run may request beyond the present version, if it requests a number.
      readers: concurrent readers of the values of one ps; each may keep a version of them.
      records: log records per frame.
      sources: shared data sources per job.
      name_length: characters in the name of a variable, leaf or source.
      host_length: characters in a host name.
      token_length: characters in a random token.
      path_length: characters in a path.
      text_length: characters in a message for people on the wire.
      failure_length: characters that a ps keeps of the reason for a worker's failure.
      program_bytes: bytes of each of the two programs of an update.
      update_text_length: characters in a traced update program.
      worker_state_bytes: bytes of one worker's saved state.
      recorded_workers: workers whose steps are recorded at the same time.
      frame_bytes: bytes in the body of a frame, if the receiver does not know what to expect.
    """

    control_bytes: int = 1 * MIB
    tasks: int = 10_000
    worker_index: int = 999_999
    elastic_workers: int = 4_096
    replaced: int = 65_536
    variables: int = 100_000
    slices: int = 1_000_000
    blocks: int = 1_000_000
    dimensions: int = 32
    elements: int = 1 << 48
    pieces: int = 100_000
    state_leaves: int = 1_000_000
    rule_settings: int = 16
    tables: int = 1_024
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
        "define": 1 * GIB,  # the update program with its constants
        "invite": 1 * GIB,
        "worker_state": LIMITS.worker_state_bytes + MIB,  # may hold residuals as large as the params
        "recorded": 8 * MIB,
        "adopt": 4 * GIB,  # the worker state of all workers
    }
)
"""The largest body that is decoded, by action; `Limits.control_bytes` for all others."""


def body_bytes(action: str, limits: Limits = LIMITS) -> int:
    """Returns the largest allowed body of a control call."""
    return BODY_BYTES.get(action, limits.control_bytes)
