"""Strategy: what all of `tf.distribute`'s strategies on devices have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.compat.tf2.distribute import context
from trainband.compat.tf2.distribute import input as inputs
from trainband.compat.tf2.distribute.exchange import Exchange
from trainband.compat.tf2.distribute.extended import Extended
from trainband.compat.tf2.distribute.program import AXIS
from trainband.compat.tf2.distribute.reduce_op import ReduceOp
from trainband.compat.tf2.distribute.replicas import Replicas, identity_of
from trainband.compat.tf2.distribute.values import PerReplica, flattened
from trainband.compat.tf2.eager.captured import NotCaptured, is_in_function, is_tracing
from trainband.compat.tf2.eager.execute import cast_to, convert
from trainband.compat.tf2.eager.function import Function
from trainband.compat.tf2.eager.replica import telling_of_variables
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.strategies.base import Strategy as Trainband


class Strategy:
    """Replicas that compute in step.

    Args:
      trainband: the strategy that trains Keras models in `fit`; `None` where that is Keras alone.
      devices: of all replicas, of all processes; `None` for one replica, wherever JAX computes.
      group: the processes, where there are several.
    """

    def __init__(
        self, trainband: Trainband | None = None, devices: Sequence[jax.Device] | None = None, group: Any = None
    ) -> None:
        self.trainband = trainband
        self._devices = list(devices or [])
        self.spans_processes = group is not None and group.count > 1
        """Whether there are replicas in other processes."""
        mine = [one for one in self._devices if one.process_index == jax.process_index()]
        self.num_local_replicas = max(1, len(mine))
        """How many of the replicas are in this process."""
        self.first_replica = self._devices.index(mine[0]) if mine else 0
        """The number of the first of them."""
        if self._devices:
            self.replica_mesh = Mesh(np.array(self._devices), (AXIS,))
            self.local_sharding = NamedSharding(Mesh(np.array(mine), (AXIS,)), PartitionSpec())
        self._exchange = Exchange(group, self.replica_mesh, self.local_sharding) if self.spans_processes else None
        self._replicas = Replicas(self, self.num_local_replicas)
        self._functions: dict[Any, tuple[Function, Any]] = {}
        self.extended = Extended(self)

    # --- what it is

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are, over all processes."""
        return max(1, len(self._devices))

    @property
    def cluster_resolver(self) -> Any:
        """What has told of the cluster; `None` where this process is alone."""
        return None

    @property
    def process(self) -> int:
        """Which of the processes this is."""
        return 0 if self._exchange is None else self._exchange.index

    @property
    def num_processes(self) -> int:
        """How many processes there are."""
        return 1 if self._exchange is None else self._exchange.count

    @property
    def job(self) -> str:
        """A random id that all processes know; empty for one process alone."""
        return "" if self._exchange is None else self._exchange.job

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """What is made inside is the strategy's: variables have one value for all, and models are trained by it.

        Raises:
          RuntimeError: another strategy's scope is open.
        """
        before = context.get_strategy()
        if context.has_strategy() and before is not self:
            raise RuntimeError("Mixing different tf.distribute.Strategy objects: a scope of another one is open here.")
        with ExitStack() as stack:
            stack.enter_context(context.cross_replica(self))
            if self.trainband is not None:
                stack.enter_context(self.trainband.scope())  # type: ignore[attr-defined]
            if self._exchange is not None:
                stack.enter_context(telling_of_variables(self._begin_alike))
            yield self

    def _begin_alike(self, variable: Any) -> None:
        """Gives a new variable the first process's value."""
        variable.give(self.from_first(convert(variable.read_for(None))))

    # --- running

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """What a function gives on each replica, of its own part of the arguments that are distributed.

        Raises:
          RuntimeError: this is a replica already.
        """
        del options
        if context.has_strategy() and not context.in_cross_replica_context():
            raise RuntimeError("`Strategy.run` is called in a replica: it must be called outside of one.")
        if self.num_replicas_in_sync == 1:
            # The lines of a function run when it is traced: where those around `run` cannot be, what it runs may.
            once = self._traced(fn) if is_in_function() else fn
            with context.ReplicaContext(self, 0):
                return once(*args, **(kwargs or {}))
        if is_tracing():
            raise NotCaptured
        return self._replicas.run(fn, args, kwargs or {})

    def _traced(self, function: Callable[..., Any]) -> Function:
        if isinstance(function, Function):
            return function
        name, keeps = identity_of(function)
        return self._functions.setdefault(name, (Function(function), keeps))[0]

    def computed(self, compute: Callable[[], Any]) -> Any:
        """What a program of all devices gives."""
        return compute() if self._exchange is None else self._exchange.watched(compute)

    def agree(self, about: str, what: Any) -> None:
        """See `Exchange.agree`."""
        if self._exchange is not None:
            self._exchange.agree(about, what)

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """The sum or mean over the replicas, and over an axis if one is given.

        Raises:
          RuntimeError: this is a replica.
        """
        if context.has_strategy() and not context.in_cross_replica_context():
            raise RuntimeError("`Strategy.reduce` is called in a replica; `tf.distribute.get_replica_context()` has")
        op = ReduceOp.of(reduce_op)
        leaves, structure = flattened(value)
        return jax.tree.unflatten(structure, [self._reduced(op, one, axis) for one in leaves])

    def _reduced(self, op: ReduceOp, value: Any, axis: int | None) -> Any:
        count = self.num_replicas_in_sync
        own = value.values if isinstance(value, PerReplica) else (convert(value),) * self.num_local_replicas
        tensors = [convert(one) for one in own]
        if axis is None:
            known = value.total if isinstance(value, PerReplica) else None
            if known is None:
                known = self.sums([[one] for one in tensors])[0]
            return known if op is ReduceOp.SUM else _divided(known, count)
        from trainband.compat.ops.reductions import reduce_sum
        from trainband.compat.ops.table import op_of
        from trainband.compat.tf2.eager.execute import function_of

        add = function_of(op_of(reduce_sum))
        sizes = [Tensor(np.asarray(one.aval[0][axis], np.int64)) for one in tensors]
        total, size = self.sums([[add(one, axis), size] for one, size in zip(tensors, sizes, strict=True)])
        return total if op is ReduceOp.SUM else _divided(total, int(size))

    def sums(self, given: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """The sums over all replicas of several tensors each, of which `given` has those of this process."""
        totals = []
        for parts in zip(*given, strict=True):
            shapes = {one.aval[0] for one in parts}
            if len(shapes) > 1:
                raise ValueError(
                    f"The replicas have values of different shapes, {', '.join(map(str, sorted(shapes)))}, which "
                    "cannot be added up."
                )
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            totals.append(total)
        return totals if self._exchange is None or not totals else self._exchange.sums(totals)

    def from_first(self, tensor: Tensor) -> Tensor:
        """The tensor that the first process has."""
        return tensor if self._exchange is None else self._exchange.from_first(tensor)

    def gather(self, value: Any, axis: int) -> Any:
        """What all replicas have, one after the other along an axis."""
        leaves, structure = flattened(value)
        found = [
            self.gathered([convert(own) for own in one.values], axis)
            if isinstance(one, PerReplica)
            else self.gathered([convert(one)] * self.num_local_replicas, axis)
            for one in leaves
        ]
        return jax.tree.unflatten(structure, found)

    def gathered(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """What all replicas have, of which this process has `tensors`, one after the other along an axis."""
        here = np.concatenate([np.asarray(one.array) for one in tensors], axis)
        if self._exchange is None:
            return Tensor(here)
        sizes = self._exchange.numbers([here.shape[axis]])[:, 0]
        padding = [(0, int(sizes.max()) - here.shape[axis] if i == axis % here.ndim else 0) for i in range(here.ndim)]
        padded = self._exchange.all_of(Tensor(np.pad(here, padding)))
        parts = [np.take(one.array, range(size), axis) for one, size in zip(padded, sizes, strict=True)]
        return Tensor(np.concatenate(parts, axis))

    def numbers(self, mine: Sequence[int]) -> np.ndarray[Any, Any]:
        """The numbers of all processes: [process, number]."""
        return np.asarray([mine]) if self._exchange is None else self._exchange.numbers(mine)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of the replicas of this process."""
        leaves, structure = flattened(value)
        if not any(isinstance(one, PerReplica) for one in leaves):
            return (value,)
        parts = [one.values if isinstance(one, PerReplica) else (one,) * self.num_local_replicas for one in leaves]
        return tuple(jax.tree.unflatten(structure, list(one)) for one in zip(*parts, strict=True))

    # --- data

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """A dataset of global batches, each replica's part by itself."""
        del options
        return inputs.distributed(self, dataset)

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any = None) -> Any:
        """Datasets of replicas' batches, one for each process, made by a function of an `InputContext`."""
        del options
        return inputs.from_function(self, dataset_fn)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_distribute_values_from_function(self, value_fn: Callable[[Any], Any]) -> Any:
        """What a function of a `ValueContext` gives for each replica."""
        count = self.num_replicas_in_sync
        found = [
            value_fn(inputs.ValueContext(self.first_replica + number, count))
            for number in range(self.num_local_replicas)
        ]
        return found[0] if count == 1 else PerReplica(found)

    def experimental_make_numpy_dataset(self, numpy_input: Any) -> Any:
        """A dataset of the rows of arrays."""
        return inputs.rows(numpy_input)


def _divided(tensor: Tensor, count: int) -> Tensor:
    if not tensor.dtype.is_floating:
        return Tensor(np.asarray(tensor.numpy() // count, tensor.aval[1]))
    return tensor / cast_to(float(count), tensor.dtype)


@functools.cache
def default_strategy() -> Strategy:
    """The strategy of a script that has none: one replica, where JAX computes."""
    return Strategy()
