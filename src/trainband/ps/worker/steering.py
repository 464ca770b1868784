"""Steering: the numbers of the optimizer's state that a worker has set, as each shard takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainband.ps.description import Plan
from trainband.ps.worker.checkpointing import ANY, ME
from trainband.wire import messages as m


class Steering:
    """What this worker has set: a ps that was given its values again needs it before it makes any update.

    Args:
      plan: of the job.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._settings: dict[str, float] = {}
        self._leaves: dict[tuple[int, str], int] = {}
        """Of each shard, which leaf of the optimizer's state a number is that was set."""

    def note(self, settings: Mapping[str, float], shards: Iterable[int]) -> None:
        """Keeps what is to be set on these shards.

        Raises:
          ModelError: the state has no such number.
        """
        numbers = list(shards)
        for name in settings:
            for shard in numbers:
                if (shard, name) not in self._leaves:
                    self._leaves[shard, name] = self._plan.number_of_state(shard, name)
        self._settings = {**self._settings, **settings}

    def of_shard(self, shard: int) -> list[m.Steer]:
        """What was set, for one shard."""
        return [m.Steer(ANY, ME, self._leaves[shard, name], value) for name, value in self._settings.items()]
