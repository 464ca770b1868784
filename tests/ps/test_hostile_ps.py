"""What a ps of the job whose process or certificate was taken over can do to shards that are not its own: nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optax
import pytest
from msgspec import structs
from numpy.typing import NDArray
from tests.fuzz.targets_wire import pair, snapshot_of
from tests.ps.jobs import PARAMS, Script
from tests.ps.plans import plan_of
from tests.ps.test_service import Ps

from trainband.cluster.identity import Identity
from trainband.ps.worker.cluster_view import ClusterView
from trainband.runtime import SYSTEM
from trainband.runtime.overrides import override
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r
from trainband.wire.messages.codec import decode_any
from trainband.wire.transport import Caller


@pytest.mark.parametrize("shard", [0, 1])
def test_only_the_ps_with_the_other_replica_sends_records(shard: int) -> None:
    """Of three ps, ps:1 has replicas of shard 0 (with ps:0) and of shard 1 (with ps:2)."""
    stranger, partner = (2, 0) if shard == 0 else (0, 2)
    ps = Ps(plan_of(PARAMS, optax.sgd(1.0), ps=3, standbys=1), index=1)
    for sender in (stranger, partner):
        caller = Caller("10.0.0.9:40000", Identity(f"ps:{sender}", "one life"))
        ps.service.stream(Script(r.ReplicationHello(shard, sender, "one life")), caller)
    refused = [line for line in ps.said if "refused" in line]
    assert len(refused) == 1
    assert f"ps:{stranger} has no replica of shard {shard}" in refused[0]


class Answered(Script):
    """A primary's stream that keeps the last answer."""

    last: m.Failure | r.Taken | None = None

    @override
    def send(self, header: bytes, body: Sequence[NDArray[Any]] = ()) -> None:
        del body
        self.last = decode_any(header, m.Failure | r.Taken, "the ps")


def test_a_term_names_only_the_replicas_of_its_shard() -> None:
    primary, standby = pair.__wrapped__()  # not the two that the fuzz targets share
    replica = standby.service.replicas.get(0)
    install, body = snapshot_of(primary.service.replicas.home)
    snapshot = (install, body)
    for number, term in enumerate([r.Term(9, 2, 1), r.Term(9, 0, 2), r.Term(9, r.NOBODY, 1)]):
        changed = structs.replace(install, term=term)
        records = r.Records(install.lineage, install.term.number, install.position + 1, install.version, (term,))
        for name, frames in (("snapshot", [(changed, body)]), ("record", [snapshot, (records, ())])):
            stream = Answered(r.ReplicationHello(0, 0, f"life {number} of ps:0, {name}"), *frames)
            standby.service.stream(stream)
            assert isinstance(stream.last, m.Failure)
            assert "which has no replica of shard 0" in stream.last.message
            assert replica.failover.term != term
    standby.check()


def state_of(
    ps: int, shard: int, *, names: int | None = None, arbiter: str = "", chief: str = "worker:0"
) -> m.JobState:
    """What `ps` says of a shard: that it holds it, in a term of its own, and wants the vote for it."""
    term = r.Term(1 << 40, ps if names is None else names, r.NOBODY, arbiter)
    vote_request = r.VoteRequest(shard, "lineage", 1 << 40, term.primary, arbiter)
    replica = r.ReplicaState(shard, term.primary, "primary", "lineage", term, 0, 0, "life", vote_request=vote_request)
    return m.JobState(0, 0, 1, True, ("worker:0",), chief=chief, replicas=(replica,))


def test_a_worker_believes_a_ps_only_about_its_own_shards() -> None:
    view = ClusterView(Identity("worker:1", "incarnation"), "worker:0", SYSTEM, 10.0, ps_count=3)
    me = r.arbiter_name("incarnation")
    forged = (
        (2, state_of(2, 0, arbiter=me, chief="worker:7")),  # it has replicas of shards 1 and 2
        (2, state_of(2, 0, names=0, arbiter=me, chief="worker:7")),
        (1, state_of(1, 0, names=0, arbiter=me, chief="worker:7")),  # in the name of the other ps
    )
    for ps, state in forged:
        assert view.record_answer(ps, state, begun=True) == []
        assert view.chief == "worker:0"
        assert not view.decides()
    for_another = state_of(0, 0, arbiter=me).replicas[0].vote_request
    mixed = structs.replace(state_of(1, 0, arbiter=me).replicas[0], vote_request=for_another)
    assert view.record_answer(1, structs.replace(state_of(1, 0), replicas=(mixed,)), begun=True) == []
    assert view.record_answer(1, state_of(1, 0, arbiter=me), begun=True) == [
        state_of(1, 0, arbiter=me).replicas[0].vote_request
    ]
