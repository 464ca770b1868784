"""Actors of Ray as a cluster."""

from __future__ import annotations

import pytest

from trainband.cluster.resolvers.ray import clusters
from trainband.errors import ClusterError

ADDRESSES = ["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.2:7001"]


def test_the_first_actors_are_ps() -> None:
    found = clusters(ADDRESSES, ps=1)
    assert [str(cluster.task) for cluster in found] == ["ps:0", "worker:0", "worker:1"]
    assert {cluster.spec.address(cluster.task) for cluster in found} == set(ADDRESSES)
    assert found[0].spec.as_dict() == {"ps": ADDRESSES[:1], "worker": ADDRESSES[1:]}
    assert clusters(ADDRESSES)[0].spec.as_dict() == {"worker": ADDRESSES}


@pytest.mark.parametrize(
    ("addresses", "ps", "message"),
    [
        (ADDRESSES, 3, "ps must be from 0 to 2 for 3 actors, got 3"),
        ([ADDRESSES[0], ADDRESSES[0]], 0, "10.0.0.1:7000"),
        (["10.0.0.1"], 0, "the port is missing"),
    ],
)
def test_what_cannot_be_is_refused(addresses: list[str], ps: int, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        clusters(addresses, ps=ps)
