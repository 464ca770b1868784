"""Snapshot install: the whole state of a replica, for the shard's other replica. Called under the service's lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.errors import ProtocolError
from trainband.job.shared_sources import SharedSources
from trainband.ps.replication.shard_replica import ShardReplica, arrays_from_wire
from trainband.ps.rules.registry import check_rule_state
from trainband.ps.shard.pushed import arrays_of_push
from trainband.ps.shard.shard import Snapshot
from trainband.wire.messages import replication as r
from trainband.wire.messages.codec import decode_any


def take_snapshot(replica: ShardReplica, incarnation: str) -> tuple[r.InstallSnapshot, list[NDArray[Any]], Snapshot]:
    """Returns the record and its body for the other replica, and the snapshot to release once both are sent."""
    shard, updater, saver = replica.require_primary(), replica.require_updater(), replica.require_saver()
    held = updater.held()
    position = replica.failover.log.start_install(incarnation)
    snapshot = shard.snapshot()
    install = r.InstallSnapshot(
        replica.failover.lineage,
        replica.failover.term,
        position,
        shard.version,
        msgspec.Raw(msgspec.msgpack.encode(updater.rule)),
        tuple(push for push, _ in held),
        replica.training,
        replica.sources.copy(),
        saver.all_worker_states(),
        replica.job,
    )
    body = [*snapshot.params.arrays(), *(np.asarray(leaf) for leaf in snapshot.state)]
    for chunk in snapshot.tables:
        body += chunk.arrays()
    for _, gradient in held:
        body += [np.array(block) for block in gradient]
    return install, body, snapshot


def install_snapshot(replica: ShardReplica, install: r.InstallSnapshot, body: Sequence[NDArray[np.uint8]]) -> None:
    """Installs the primary's snapshot.

    Raises:
      ProtocolError, DataError: it does not fit the model defined, or contradicts itself; nothing has changed.
    """
    definition, primary = replica.definition, f"the primary of {replica.name}"
    assert definition is not None
    rule = decode_any(install.rule, type(definition.new_rule(0, 0)), primary)
    check_rule_state(rule, install.version, {(push.worker, push.sequence) for push in install.held}, primary)
    new = definition.new_shard()  # one not in use yet
    blocks, each = len(new.layout.blocks), arrays_of_push(new)
    rows_at = blocks + len(new.state_shapes)
    at = rows_at + new.tables.arrays_of_copies
    if len(body) != at + each * len(install.held):
        raise ProtocolError(f"{primary} sent {len(body)} buffers, which do not fit the model that it defined.")
    params = new.layout.from_wire(body[:blocks])
    state = new.state_from_wire(body[blocks:rows_at])
    rows = new.tables.copies_from_wire(body[rows_at:at])
    if params is None or state is None or rows is None:
        raise ProtocolError(f"{primary} sent values of another size than it defined.")
    held = [
        arrays_from_wire(new, body[at + i * each : at + (i + 1) * each], replica.name) for i in range(len(install.held))
    ]
    SharedSources().replace_ledgers(install.sources)  # which may be invalid
    replica.install(definition)
    updater = replica.require_updater()
    updater.shard.restore(install.version, updater.shard.owned(params), state)
    for number, chunk in enumerate(rows):
        updater.shard.tables.load(number, [chunk])
    updater.rule = rule
    for push, gradient in zip(install.held, held, strict=True):
        updater.hold(push, tuple(np.array(block) for block in gradient))
    replica.training, replica.job = install.began, install.job
    replica.sources.replace_ledgers(install.sources)
    replica.require_saver(held=False).replace_worker_states(install.worker_state)
    replica.failover.install_snapshot(install.lineage, install.term, install.position)
