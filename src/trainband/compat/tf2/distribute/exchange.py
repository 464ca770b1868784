"""Exchange: what the processes of a group tell one another: sums of tensors, one's values for all, and numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.compat.tf2.eager.tensor import Tensor
from trainband.spmd.process_group import ProcessGroup

_PROCESS = "process"


class Exchange:
    """The exchanges of a group of processes, in each of which all must take part, in the same order.

    Args:
      group: the processes.
      mesh: of the devices of all.
      local: on all devices of this process.
    """

    def __init__(self, group: ProcessGroup, mesh: Mesh, local: NamedSharding) -> None:
        self._group = group
        self._local = local
        first = {device.process_index: device for device in reversed(list(mesh.devices.flat))}
        self._mesh = Mesh(np.array([first[index] for index in range(group.count)]), (_PROCESS,))
        self._split = NamedSharding(self._mesh, PartitionSpec(_PROCESS))
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._calls = itertools.count(1)
        group.start_engine()

    @property
    def count(self) -> int:
        """How many processes there are."""
        return self._group.count

    @property
    def index(self) -> int:
        """Which of them this one is."""
        return self._group.index

    @property
    def job(self) -> str:
        """A random id, the same for all."""
        return self._group.job

    def sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums of the processes' tensors.

        Raises:
          ValueError: those of another process have other shapes.
        """
        about = tuple((one.aval[0], str(one.aval[1])) for one in tensors)
        found = self.run(("sums", about), _summed, [one.array for one in tensors])
        return [Tensor(one) for one in found]

    def from_first(self, tensor: Tensor) -> Tensor:
        """The tensor that the first process has."""
        mine = tensor.array if self.index == 0 else np.zeros(*tensor.aval)
        found = self.run(
            ("first", *map(str, tensor.aval)), lambda parts: [parts.sum(0, dtype=parts.dtype)], [np.asarray(mine)]
        )
        return Tensor(found[0])

    def all_of(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, which have one shape."""
        found = self.run(("all", *map(str, tensor.aval)), lambda parts: [parts], [np.asarray(tensor.array)])
        return [Tensor(found[0][index]) for index in range(self.count)]

    def numbers(self, mine: Sequence[int]) -> np.ndarray[Any, Any]:
        """The numbers of all processes: [process, number]."""
        found = self.run(("numbers", len(mine)), lambda parts: [parts], [np.asarray(mine, np.int32)])
        return np.asarray(found[0])

    def agree(self, about: str, what: Any) -> None:
        """Has all processes find that they are about to do the same.

        Raises:
          ValueError: another one is about to do something else.
        """
        for number, other in enumerate(self._group.barrier(about, str(what))):
            if other != str(what):
                raise ValueError(
                    f"{self._group.name(number)} {about} of {other}, and {self._group.task} of {what}: all workers "
                    "must run the same program with values of the same shapes."
                )

    def run(self, about: Any, function: Callable[..., Any], arrays: Sequence[Any]) -> list[Any]:
        """The results of a function of the arrays of all processes, stacked along a new first axis."""
        if about not in self._programs:
            self.agree("exchanges values", about)
            self._programs[about] = jax.jit(function, out_shardings=NamedSharding(self._mesh, PartitionSpec()))
        whole = [self._stacked(np.asarray(array)) for array in arrays]
        found = self.watched(lambda: self._programs[about](*whole))
        here = [one.addressable_data(0) for one in found]
        return here if self._local.num_devices == 1 else jax.device_put(here, self._local)

    def watched(self, compute: Callable[[], Any]) -> Any:
        """The result of an exchange, computed.

        Raises:
          PeerError: it has failed, because another process is gone.
        """
        self._group.check()
        with self._group.watched(1, next(self._calls)), jax.enable_x64(True):
            return jax.block_until_ready(compute())

    def _stacked(self, array: np.ndarray[Any, Any]) -> jax.Array:
        with jax.enable_x64(True):
            shape = (self.count, *array.shape)
            found: jax.Array = jax.make_array_from_process_local_data(self._split, array[None], shape)
            return found


def _summed(*stacked: Any) -> list[Any]:
    """The sums along the first axis; those of one dtype in one exchange."""
    places: dict[Any, list[int]] = {}
    for number, one in enumerate(stacked):
        places.setdefault(one.dtype, []).append(number)
    found: dict[int, Any] = {}
    for kind, them in places.items():
        flat = jnp.concatenate([stacked[i].reshape(stacked[i].shape[0], -1) for i in them], 1).sum(0, dtype=kind)
        at = 0
        for i in them:
            shape = stacked[i].shape[1:]
            size = math.prod(shape)
            found[i] = flat[at : at + size].reshape(shape)
            at += size
    return [found[i] for i in range(len(stacked))]
