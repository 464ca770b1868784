"""BatchSharding: splits a batch over the devices of a mesh."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from numpy.typing import NDArray

from trainband.errors import ClusterError, DataError
from trainband.model.batch import BatchStack, ShardedBatch, copied, owned
from trainband.model.variables import PyTree
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.spmd.sharding import is_on_cpu

REMAINDERS = ("pad", "refuse")
"""How to treat a batch that does not divide evenly over the devices: pad it for the transfer to the devices, whose
program ignores the padding; or refuse it.
"""


class OwnPart(NamedTuple):
    """A process's share of each batch.

    Attributes:
      first: the number of its first part.
      parts: how many parts it has.
      sharers: the numbers of the processes that compute these parts together, including its own; each brings the
        same examples.
    """

    first: int
    parts: int
    sharers: tuple[int, ...]


def own_part(process: int, parts: Mapping[int, set[int]], task: str) -> OwnPart:
    """Returns this process's share, given the parts that each process's devices compute.

    Raises:
      ClusterError: a process would take another's rows for its own.
    """
    mine = parts[process]
    for number, theirs in parts.items():
        if max(theirs) - min(theirs) + 1 != len(theirs):
            raise ClusterError(
                f"{task}: the devices of process {number} have the parts {', '.join(map(str, sorted(theirs)))} of each "
                "batch, which are not adjacent: workers would take one another's rows for their own. Put the axis data "
                "first in the mesh."
            )
    sharers = tuple(sorted(number for number, theirs in parts.items() if theirs & mine))
    if any(parts[number] != mine for number in sharers):
        raise ClusterError(
            f"{task}: processes {', '.join(map(str, sharers))} share some parts of each batch, but not all: the number "
            "of devices that compute one part must be a multiple or a divisor of the devices per process. Change the "
            "mesh's axes other than data."
        )
    return OwnPart(min(mine), len(mine), sharers)


class BatchSharding:
    """A callable that splits batches over the devices of a mesh.

    Args:
      mesh: of this process's devices, or of several processes'.
      axes: the mesh axes that examples are split over.
      remainder: see `REMAINDERS`.
      task: for messages.
      say: prints lines for the user.
    """

    def __init__(self, mesh: Mesh, axes: Sequence[str], remainder: str, task: str, say: Say = say_on_stderr) -> None:
        self._axes = tuple(axes)
        self._parts = math.prod(int(mesh.shape[axis]) for axis in axes)
        self._whole = NamedSharding(mesh, PartitionSpec())
        self._split = NamedSharding(mesh, PartitionSpec(self._axes)) if self._axes else self._whole
        self._split_stacks = NamedSharding(mesh, PartitionSpec(None, self._axes)) if self._axes else self._whole
        self.remainder = remainder
        """As given."""
        self._task = task
        self._say = say
        self._is_first = True
        self._alone = mesh.size == 1
        self._copies = is_on_cpu(mesh)
        self._processes = len({device.process_index for device in mesh.devices.flat})
        # Not `jax.process_index()`: on a mesh of CPUs beside accelerators, that is the accelerators' index.
        process = mesh.devices.flat[0].client.process_index()
        self._own = own_part(process, self._parts_by_process(), task)
        self._local = self._own.parts
        self._rows: int | None = None
        self._places: dict[tuple[int, ...], list[tuple[jax.Device, int, int]]] = {}
        """For each shape of a global array, the rows of this process's part that each device gets."""
        self._known: dict[int, _Known] = {}
        """Known batches, by the id of their first array."""
        here = [device for device in mesh.devices.flat if device.process_index == process]
        self._only = here[0] if len(here) == 1 else None
        """The device of this process in the mesh, if it has only one."""
        self._device_put: Callable[..., tuple[jax.Array, ...]] | None = None
        """Puts NumPy arrays on it: on a CPU in half the time of `jax.device_put`, which mostly does other things."""
        if self._only is not None and self._copies:
            self._device_put = jax.jit(lambda *arrays: arrays, out_shardings=SingleDeviceSharding(self._only))

    @property
    def parts(self) -> int:
        """How many parts a batch is split into, over all processes."""
        return self._parts

    @property
    def local(self) -> int:
        """How many parts the batch of this process is split into."""
        return self._local

    def expect(self, rows: int) -> None:
        """Accepts batches of this size from now on: all processes have changed to it in the same step."""
        self._rows = rows

    def forget(self) -> None:
        """Allows another batch size in the next training run."""
        self._rows = None

    @property
    def own(self) -> OwnPart:
        """The parts that this process brings."""
        return self._own

    def _parts_by_process(self) -> dict[int, set[int]]:
        parts: dict[int, set[int]] = {}
        rows = self._split.devices_indices_map((self._parts,))
        for device in self._split.mesh.devices.flat:
            parts.setdefault(device.process_index, set()).add(rows[device][0].indices(self._parts)[0])
        return parts

    def __call__(self, batch: PyTree) -> PyTree:
        """Returns the batch on the devices; unchanged if it is already there.

        Raises:
          DataError: its examples do not divide evenly and must; or its arrays have different numbers of them.
        """
        if isinstance(batch, ShardedBatch):
            return batch
        if isinstance(batch, tuple) and batch and isinstance(batch[0], ShardedBatch):
            return batch  # micro-batches
        # A tuple of arrays is its own list of leaves; flattening it takes some microseconds of every step.
        known = self._known.get(id(batch[0])) if type(batch) is tuple and batch else None
        if known is None or not known.is_tuple or not known.is_of(batch):
            leaves, structure = jax.tree.flatten(batch)
            known = self._known.get(id(leaves[0])) if leaves else None
            if known is None or structure != known.structure or not known.is_of(leaves):
                return self._sharded(leaves, structure)
        if self._processes > 1 and known.batch.examples is not None:
            self._check_alike(known.batch.examples)
        return known.batch

    def _sharded(self, leaves: list[Any], structure: Any) -> ShardedBatch:
        rows = self._rows_of(leaves)
        missing = -rows % self._local
        if missing and self.remainder == "refuse":
            raise DataError(
                f"{self._task}: a batch of {rows} examples cannot be split over {self._local} devices"
                f"{' of this process' if self._processes > 1 else ''}: take a multiple of {self._local}, or "
                'leave out remainder="refuse".'
            )
        if self._processes > 1:
            self._check_alike(rows)
        if missing and self._is_first:
            self._say(
                f"{self._task}: a batch of {rows} examples does not divide over {self._local} devices, so each of "
                f"them computes the whole step; batches of a multiple of {self._local} are computed in parts"
            )
        self._is_first = False
        if missing:
            leaves = [_filled(leaf, missing) for leaf in leaves]
        real = (rows,) * (self._parts // self._local) if missing else None
        placed = self._place_all(leaves)
        sharded = ShardedBatch(jax.tree.unflatten(structure, placed), real, examples=rows)
        is_new = not any(one is leaf for one, leaf in zip(placed, leaves, strict=True))
        if is_new and self._only is not None and all(_lies_on(leaf, self._only) for leaf in leaves):
            # Data kept on the device is passed again and again and never changes. This keeps no memory alive: arrays
            # already on the device were not copied, and their entry is dropped with them.
            key = id(leaves[0])
            leaving = partial(self._forget_batch, key)
            is_tuple = structure == jax.tree.structure(tuple(leaves))
            refs = [weakref.ref(leaf, leaving) for leaf in leaves]
            self._known[key] = _Known(refs, structure, is_tuple=is_tuple, batch=sharded)
        return sharded

    def stacked(self, stack: PyTree) -> BatchStack | None:
        """Returns the batches of several steps on the devices, from NumPy arrays that nothing writes into; `None` if
        they do not divide evenly and must go one by one.

        Raises:
          DataError: their arrays have different numbers of examples, or not as many as other processes'.
        """
        leaves, structure = jax.tree.flatten(stack)
        rows = self._rows_of([leaf[0] for leaf in leaves])
        if rows % self._local:
            return None
        if self._processes > 1:
            self._check_alike(rows)
        placed = map(self._place_stack, leaves)
        return BatchStack(ShardedBatch(jax.tree.unflatten(structure, placed), examples=rows))

    def _place_stack(self, stack: NDArray[Any]) -> jax.Array:
        steps, *shape = stack.shape
        sharding = self._split_stacks if shape else self._whole
        if self._processes == 1:
            placed: jax.Array = jax.device_put(stack, sharding)
            return placed
        made: jax.Array = jax.make_array_from_process_local_data(sharding, stack, (steps, *self._of_all(shape)))
        return made

    def _of_all(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a batch's array with the parts of all processes."""
        return (shape[0] * self._parts // self._local, *shape[1:]) if shape else ()

    def _forget_batch(self, key: int, _: object) -> None:
        self._known.pop(key, None)

    def _rows_of(self, leaves: Sequence[Any]) -> int:
        sizes = {int(np.shape(leaf)[0]) for leaf in leaves if np.ndim(leaf)}
        if not sizes:
            raise DataError(f"{self._task}: a batch has no array with examples along its first axis.")
        if len(sizes) > 1 and self._parts > 1:
            raise DataError(
                f"{self._task}: the arrays of a batch must have the same number of examples, along their first axis, "
                f"to be split over devices; got {', '.join(map(str, sorted(sizes)))}."
            )
        return int(np.shape(next(leaf for leaf in leaves if np.ndim(leaf)))[0])

    def _check_alike(self, rows: int) -> None:
        """Refuses another size: the program of all processes is made for one."""
        if self._rows is None:
            self._rows = rows
        if rows != self._rows:
            raise DataError(
                f"{self._task}: a batch has {rows} examples, but the first one had {self._rows}: workers that compute "
                "in lockstep need batches of one size. Drop the last, shorter batch of an epoch, or pad it."
            )

    def _place_all(self, leaves: list[Any]) -> list[jax.Array]:
        are_numpys = all(type(leaf) is np.ndarray and leaf.ndim for leaf in leaves)
        if self._device_put is None or self._processes == 1 or not are_numpys:
            return [self._place(leaf) for leaf in leaves]
        return [
            jax.make_array_from_single_device_arrays(self._of_all(leaf.shape), self._split, [leaf])
            for leaf in self._device_put(*map(copied, leaves))
        ]

    def _place(self, leaf: Any) -> jax.Array:
        sharding = self._split if np.ndim(leaf) else self._whole
        if self._copies:
            leaf = owned(leaf)
        if self._processes == 1:
            placed: jax.Array = jax.device_put(leaf, sharding)
            return placed
        shape = self._of_all(np.shape(leaf))
        if not shape or not isinstance(leaf, jax.Array):
            made: jax.Array = jax.make_array_from_process_local_data(sharding, np.asanyarray(leaf), shape)
            return made
        # Does the same for arrays on a device, in a sixth of the time.
        places = self._places.get(shape)
        if places is None:
            found = [
                (device, *(index[0].indices(shape[0])[:2] if index else (0, shape[0])))
                for device, index in sharding.addressable_devices_indices_map(shape).items()
            ]
            first = min(start for _, start, _ in found)
            places = self._places[shape] = [(device, start - first, stop - first) for device, start, stop in found]
        if len(places) == 1 and leaf.devices() == {places[0][0]}:
            arrays = [leaf]
        else:
            arrays = [jax.device_put(leaf[start:stop], device) for device, start, stop in places]
        return jax.make_array_from_single_device_arrays(shape, sharding, arrays)


def _lies_on(leaf: Any, device: jax.Device) -> bool:
    return isinstance(leaf, jax.Array) and leaf.devices() == {device}


@dataclass(frozen=True, slots=True)
class _Known:
    """A batch of arrays on the device, and as placed on the mesh."""

    leaves: list[weakref.ref[jax.Array]]
    structure: Any
    is_tuple: bool
    batch: ShardedBatch

    def is_of(self, leaves: Sequence[Any]) -> bool:
        """Whether these are the same arrays, and not deleted."""
        if len(leaves) != len(self.leaves):
            return False
        for known, leaf in zip(self.leaves, leaves, strict=True):
            array = known()
            if array is None or array is not leaf or array.is_deleted():
                return False
        return True


def sharded_evenly(mesh: Mesh, axes: Sequence[str], batch: PyTree) -> PyTree:
    """Places a batch that every process has for an evaluation, split if it divides evenly."""
    parts = math.prod(mesh.shape[axis] for axis in axes)
    split = NamedSharding(mesh, PartitionSpec(tuple(axes)))
    whole = NamedSharding(mesh, PartitionSpec())

    def place(leaf: Any) -> jax.Array:
        array: Any = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        fits = array.ndim > 0 and axes and array.shape[0] and array.shape[0] % parts == 0
        where = split if fits else whole
        if where.is_fully_addressable:
            on_mesh: jax.Array = jax.device_put(array, where)  # from another device, not through the host
            return on_mesh
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, where, lambda index: array[index])

    return jax.tree.map(place, batch)


def _filled(leaf: Any, missing: int) -> NDArray[Any]:
    """Pads with copies of the last example, which are as safe to compute with as the original."""
    array = np.asarray(leaf)
    if not array.ndim:
        return array
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
