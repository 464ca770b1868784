"""Which strategy and which replica the code of this thread runs under."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from trainband.compat.tf2.distribute.reduce_op import ReduceOp
from trainband.compat.tf2.eager.tensor import Tensor


class ReplicaContext:
    """One replica of several, or the only one. `merge_call` and the sums are for all of them together.

    Args:
      strategy: whose replica it is.
      replica_id: its number among all.
    """

    def __init__(self, strategy: Any, replica_id: Any) -> None:
        self.strategy = strategy
        self.replica_id_in_sync_group = replica_id

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def devices(self) -> tuple[str, ...]:
        """Where this replica computes."""
        return (self.strategy.extended.worker_devices[0],)

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls a function once for all replicas, with the strategy and what they all gave. All must come to it."""
        with cross_replica(self.strategy):
            return merge_fn(self.strategy, *args, **(kwargs or {}))

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """The sum or mean over all replicas of tensors that are nested alike."""
        del options
        ReduceOp.of(reduce_op)
        return value

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """What all replicas have, one after the other along an axis."""
        del axis, options
        return value

    def merged(self, function: Callable[[Sequence[Tensor]], Any], tensors: Sequence[Tensor]) -> Any:
        """See `eager.replica.Replica`."""
        with cross_replica(self.strategy):
            return function(tensors)

    def __enter__(self) -> ReplicaContext:
        _here.entered.append((self.strategy, self))
        return self

    def __exit__(self, *_: object) -> None:
        _here.entered.pop()


class _Here(threading.local):
    def __init__(self) -> None:
        self.entered: list[tuple[Any, ReplicaContext | None]] = []


_here = _Here()
_STRATEGY = "trainband.compat.tf2.distribute.strategy"
"""Where the strategy of a script is that has none; by name, for it stands above."""
_chosen: list[Any] = []
"""The strategy that was set for the whole program."""


@contextmanager
def cross_replica(strategy: Any) -> Iterator[None]:
    """What is inside is done once for all replicas of a strategy."""
    _here.entered.append((strategy, None))
    try:
        yield
    finally:
        _here.entered.pop()


def get_strategy() -> Any:
    """The strategy in whose scope this is; one that does nothing where it is in none."""
    if _here.entered:
        return _here.entered[-1][0]
    if _chosen:
        return _chosen[-1]
    return import_module(_STRATEGY).default_strategy()


def has_strategy() -> bool:
    """Whether this is in the scope of a strategy, or in one of its replicas."""
    return bool(_here.entered or _chosen)


def get_replica_context() -> ReplicaContext | None:
    """The replica that runs this; `None` where it is done once for all of them."""
    if _here.entered:
        return _here.entered[-1][1]
    return None if _chosen else ReplicaContext(get_strategy(), 0)


def in_cross_replica_context() -> bool:
    """Whether this is done once for all replicas."""
    return get_replica_context() is None


def experimental_set_strategy(strategy: Any) -> None:
    """Have all that follows be in the scope of a strategy.

    Raises:
      RuntimeError: this is in the scope of one already.
    """
    if _here.entered:
        raise RuntimeError("Must not be called inside a strategy scope.")
    _chosen.clear()
    if strategy is not None:
        _chosen.append(strategy)


def entered() -> list[tuple[Any, ReplicaContext | None]]:
    """What this thread is in, for another one that goes on with it."""
    return list(_here.entered)


def enter_all(what: list[tuple[Any, ReplicaContext | None]]) -> None:
    """Has this thread be in what another one was in."""
    _here.entered = list(what)
