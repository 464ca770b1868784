"""Extended: what library code asks a strategy for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trainband.compat.tf2.distribute import context
from trainband.compat.tf2.distribute.reduce_op import ReduceOp
from trainband.compat.tf2.distribute.values import PerReplica, flattened


class Extended:
    """The rest of a strategy.

    Args:
      strategy: which.
    """

    experimental_between_graph = False
    experimental_require_static_shapes = False
    should_checkpoint = True
    should_save_summary = True

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices of this process's replicas."""
        return tuple(
            f"/job:localhost/replica:0/task:0/device:CPU:{number}"
            for number in range(self._strategy.num_local_replicas)
        )

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Where variables are."""
        return self.worker_devices

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See `Strategy.run`."""
        return self._strategy.run(fn, args, kwargs)

    def reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
        """The sum or mean over the replicas of a value that they have given `merge_call`."""
        del destinations, options
        from trainband.compat.tf2.distribute.program import summed
        from trainband.compat.tf2.eager.execute import convert

        tensor = None if isinstance(value, PerReplica) else convert(value)
        if tensor is None or not tensor.is_traced:
            return self._strategy.reduce(reduce_op, value, axis=None)
        total = summed([tensor])[0]
        count = convert(float(self._strategy.num_replicas_in_sync), total.dtype)
        return total if ReduceOp.of(reduce_op) is ReduceOp.SUM else total / count

    def batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Sequence[Any], options: Any = None) -> list[Any]:
        """Several of `reduce_to`."""
        return [self.reduce_to(reduce_op, value, where, options) for value, where in value_destination_pairs]

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Calls a function of a variable, once for all."""
        del group
        return fn(var, *args, **(kwargs or {}))

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """The tensor, which all have."""
        del destinations
        return tensor

    def value_container(self, value: Any) -> Any:
        """The variable itself."""
        return value

    def variable_created_in_scope(self, v: Any) -> bool:  # noqa: ARG002 - all variables are for all replicas
        """Whether a variable is the strategy's."""
        return True

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Where variables are is the strategy's affair."""
        del colocate_with_variable
        yield

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """See `Strategy.experimental_local_results`."""
        return tuple(self._strategy.experimental_local_results(value))

    def is_in_scope(self) -> bool:
        """Whether the strategy's scope is open."""
        return context.has_strategy() and context.get_strategy() is self._strategy

    def leaves(self, value: Any) -> list[Any]:
        """What is nested in a value."""
        return flattened(value)[0]
