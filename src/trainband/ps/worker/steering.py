"""Steering: the scalars of the optimizer's state that a worker has set, by shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainband.ps.worker.plan import Plan
from trainband.ps.worker.shard_link import ANY, ME
from trainband.wire.messages import calls as m


class Steering:
    """Settings of this worker, which a restored ps needs before it makes any update."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._settings: dict[str, float] = {}
        self._leaves: dict[tuple[int, str], int] = {}
        """By shard and name, the leaf of the optimizer's state that was set."""

    def store(self, settings: Mapping[str, float], shards: Iterable[int]) -> None:
        """Keeps settings for these shards.

        Raises:
          ModelError: the state has no such scalar.
        """
        numbers = list(shards)
        for name in settings:
            for shard in numbers:
                if (shard, name) not in self._leaves:
                    self._leaves[shard, name] = self._plan.number_of_state(shard, name)
        self._settings = {**self._settings, **settings}

    def of_shard(self, shard: int) -> list[m.Steer]:
        """Returns a shard's settings."""
        return [m.Steer(ANY, ME, self._leaves[shard, name], value) for name, value in self._settings.items()]
