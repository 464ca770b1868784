"""Replicas as one program: a function that all replicas run is traced once, and compiled for all devices together.

As in JAX's `shard_map`: each device computes its own inputs' part, and what is merged is added up on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.compat.tf2.distribute.context import ReplicaContext, cross_replica
from trainband.compat.tf2.distribute.reduce_op import ReduceOp
from trainband.compat.tf2.distribute.values import PerReplica, flattened, is_leaf
from trainband.compat.tf2.distribute.written import FIRST, SUM, aggregation_of, is_seed, offset
from trainband.compat.tf2.eager.captured import Trace, capturing
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.replica import being
from trainband.compat.tf2.eager.seeds import Draws, drawing, numbers
from trainband.compat.tf2.eager.structure import flatten, pack
from trainband.compat.tf2.eager.tensor import Tensor

AXIS = "replica"
SMALL = 1024
"""Up to this many elements are few: their sum over the replicas is always computed."""


_RESULT = object()
"""Stands for a tensor in what a function gives."""


class ReplicaTrace(Trace):
    """What a replica reads and assigns while it is traced.

    Args:
      values: of the variables, by identity.
      replica_id: its number, which JAX traces.
    """

    def __init__(self, values: dict[int, Tensor], replica_id: Any) -> None:
        super().__init__(values)
        self._before = dict(values)
        self._replica_id = replica_id
        self._merged: set[int] = set()
        self.merging = False
        """Whether what is assigned is the same for all."""
        self._seeds: set[int] = set()

    def value(self, variable: Any, own: Tensor) -> Tensor:
        found = super().value(variable, own)
        if is_seed(variable) and id(variable) not in self._seeds:
            self._seeds.add(id(variable))
            found = self.values[id(variable)] = found + offset(found, self._replica_id)
        return found

    def assigned(self, variable: Any, tensor: Tensor) -> bool:
        if not self.merging:
            aggregation_of(variable)
        elif id(variable) not in self.values:
            self.values[id(variable)] = tensor
        if self.merging:
            self._merged.add(id(variable))
        else:
            self._merged.discard(id(variable))
        return super().assigned(variable, tensor)

    def results(self, count: int) -> list[Any]:
        """What the variables become that were assigned."""
        own = {key: one for key, one in self.written.items() if key not in self._merged}
        kinds = {key: aggregation_of(variable) for key, variable in own.items()}
        given: list[Any] = []
        for key, kind in kinds.items():
            value = self.values[key]
            if is_seed(own[key]):
                value = value - offset(value, self._replica_id)
            elif kind == SUM:
                value = value - self._before[key]
            elif kind == FIRST:
                array = convert(value).array
                value = Tensor(jnp.where(self._replica_id == 0, array, jnp.zeros_like(array)))
            given.append(value)
        seeds = [is_seed(variable) for variable in own.values()]
        sums = iter(summed([one for one, seed in zip(given, seeds, strict=True) if not seed]))
        found = dict(self.values)
        for (key, kind), seed, value in zip(kinds.items(), seeds, given, strict=True):
            total = value if seed else next(sums)
            if seed or kind == FIRST:
                found[key] = total
            elif kind == SUM:
                found[key] = self._before[key] + total
            else:
                found[key] = total / convert(np.asarray(count, total.aval[1]))
        return [found[key].array for key in self.written]


def summed(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sums of tensors over the replicas of the program that is traced; those of one dtype in one exchange."""
    places: dict[Any, list[int]] = {}
    arrays = [jnp.asarray(one.array) for one in tensors]
    for number, array in enumerate(arrays):
        places.setdefault(array.dtype, []).append(number)
    found: dict[int, Tensor] = {}
    for them in places.values():
        if len(them) == 1:
            found[them[0]] = Tensor(jax.lax.psum(arrays[them[0]], AXIS))
            continue
        flat = jax.lax.psum(jnp.concatenate([jnp.ravel(arrays[i]) for i in them]), AXIS)
        at = 0
        for i in them:
            found[i] = Tensor(flat[at : at + arrays[i].size].reshape(arrays[i].shape))
            at += arrays[i].size
    return [found[number] for number in range(len(tensors))]


class TracedContext(ReplicaContext):
    """A replica that is traced."""

    def __init__(self, strategy: Any, replica_id: Any, trace: ReplicaTrace) -> None:
        super().__init__(strategy, Tensor(replica_id))
        self._trace = trace

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._once(lambda: merge_fn(self.strategy, *args, **(kwargs or {})))

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        del options
        sums = summed([convert(one) for one in flatten(value)])
        if ReduceOp.of(reduce_op) is ReduceOp.MEAN:
            sums = [one / convert(np.asarray(self.num_replicas_in_sync, one.aval[1])) for one in sums]
        return pack(value, sums)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        del options
        found = [jax.lax.all_gather(convert(one).array, AXIS, axis=axis, tiled=True) for one in flatten(value)]
        return pack(value, [Tensor(one) for one in found])

    def merged(self, function: Callable[[Sequence[Tensor]], Any], tensors: Sequence[Tensor]) -> Any:
        return self._once(lambda: function(summed(tensors)))

    def _once(self, function: Callable[[], Any]) -> Any:
        before, self._trace.merging = self._trace.merging, True
        try:
            with cross_replica(self.strategy), being(None):
                return function()
        finally:
            self._trace.merging = before


class Program:
    """A function of replicas, compiled for all devices.

    Args:
      strategy: whose replicas they are.
      function: what they run.
      structure, fixed: of its arguments: how they are nested, and those that are no tensors.
      kinds: of each argument that is one, whether each replica has its own.
      reads: the variables that it reads or assigns.
    """

    def __init__(
        self,
        strategy: Any,
        function: Callable[..., Any],
        structure: Any,
        fixed: Sequence[Any],
        kinds: Sequence[bool | None],
        reads: Sequence[Any],
    ) -> None:
        self._strategy = strategy
        self._function = function
        self._structure = structure
        self._fixed = fixed
        self._kinds = kinds
        self._reads = reads
        self._draws = 0
        self._writes: list[Any] = []
        self._result: Any = None
        self._rest: list[Any] = []
        mesh: Mesh = strategy.replica_mesh
        everywhere, each = PartitionSpec(), PartitionSpec(AXIS)
        own = [each if kind else everywhere for kind in kinds if kind is not None]
        self._compute = jax.jit(
            jax.shard_map(
                self._trace,
                mesh=mesh,
                in_specs=(everywhere, everywhere, own),
                out_specs=(each, everywhere, everywhere),
                check_vma=False,
            )
        )
        self._everywhere = NamedSharding(mesh, everywhere)
        self._each = NamedSharding(mesh, each)

    def _trace(self, base: Any, held: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        replica_id = jax.lax.axis_index(AXIS)
        draws = Draws(base + replica_id.astype(jnp.uint32) * np.uint32(0x9E3779B1))
        known = {id(one): Tensor(array) for one, array in zip(self._reads, held, strict=True)}
        trace = ReplicaTrace(known, replica_id)
        place = TracedContext(self._strategy, replica_id, trace)
        rest = iter(inputs)
        leaves = []
        for kind, one in zip(self._kinds, self._fixed, strict=True):
            leaves.append(one if kind is None else Tensor(next(rest)[0] if kind else next(rest)))
        args, kwargs = jax.tree.unflatten(self._structure, leaves)
        with place, being(place), capturing(trace), drawing(draws):
            result = self._function(*args, **kwargs)
        found, self._result = flattened(result)
        self._rest = [_RESULT if is_leaf(one) else one for one in found]
        tensors = [convert(one) for one in found if is_leaf(one)]
        small = [one for one in tensors if one.aval[1].kind in "iuf" and int(np.prod(one.aval[0])) <= SMALL]
        self._totals = [any(one is other for other in small) for one in tensors]
        self._draws = draws.count
        self._writes = list(trace.written.values())
        totals = [one.array for one in summed(small)]
        written = trace.results(self._strategy.num_replicas_in_sync)
        return [jnp.asarray(one.array)[None] for one in tensors], totals, written

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """The results of all replicas.

        Args:
          inputs: the arguments that are tensors; those of which each replica has its own are `PerReplica`.
        """
        kinds = [kind for kind in self._kinds if kind is not None]
        base = numbers(max(self._draws, 1) if self._writes or self._draws else 64)
        with jax.enable_x64(True):
            held = [self._whole(convert(one.read_for(None))) for one in self._reads]
            given = [self._own(one) if kind else self._whole(one) for kind, one in zip(kinds, inputs, strict=True)]
            results, totals, written = self._strategy.computed(lambda: self._compute(self._whole(base), held, given))
        for variable, array in zip(self._writes, written, strict=True):
            variable.give(self._here(array))
        sums = iter(totals)
        found = []
        for array, has_total in zip(results, self._totals, strict=True):
            total = self._here(next(sums)) if has_total else None
            found.append(PerReplica(_parts(array), total=total))
        tensors = iter(found)
        leaves = [next(tensors) if one is _RESULT else one for one in self._rest]
        return jax.tree.unflatten(self._result, leaves)

    def _whole(self, tensor: Tensor) -> Any:
        """A tensor as an array that all devices of all processes have."""
        if tensor.whole is not None:
            return tensor.whole
        array = tensor.array
        if not self._strategy.spans_processes:
            is_there = isinstance(array, jax.Array) and array.sharding == self._everywhere
            return array if is_there else jax.device_put(array, self._everywhere)
        parts = [jax.device_put(array, device) for device in sorted(self._everywhere.addressable_devices, key=_number)]
        return jax.make_array_from_single_device_arrays(array.shape, self._everywhere, parts)

    def _own(self, value: PerReplica) -> Any:
        tensors = [convert(one) for one in value.values]
        array = np.stack([np.asarray(one.array) for one in tensors])
        if not self._strategy.spans_processes:
            return jax.device_put(array, self._each)
        count = self._strategy.num_replicas_in_sync
        return jax.make_array_from_process_local_data(self._each, array, (count, *array.shape[1:]))

    def _here(self, array: Any) -> Tensor:
        """An array that all devices of all processes have, as this process has it."""
        if not self._strategy.spans_processes:
            return Tensor(array)
        if len(self._everywhere.addressable_devices) == 1:
            found = Tensor(array.addressable_data(0))
        else:
            shards = [shard.data for shard in array.addressable_shards]
            local = jax.make_array_from_single_device_arrays(array.shape, self._strategy.local_sharding, shards)
            found = Tensor(local)
        found.whole = array
        return found


def _number(device: jax.Device) -> int:
    return int(device.id)


def _parts(array: Any) -> Callable[[], list[Tensor]]:
    def parts() -> list[Tensor]:
        shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return [Tensor(np.asarray(shard.data)[0]) for shard in shards]

    return parts
