"""WorkerState: what one worker must find again to go on exactly where it was, beside what the whole job shares."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint import Checkpoint, Part, Piece, WorkerEntry, write_part
from trainband.errors import DamagedCheckpoint, ModelMismatch
from trainband.model.random_keys import key_kinds, with_keys, without_keys
from trainband.model.variables import PyTree
from trainband.wire.codec import decode, encode

FILE = "workers.safetensors"


class _Array(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: NDArray[Any]) -> _Array:
        return cls(array.dtype.name, array.shape, array.tobytes())

    @property
    def values(self) -> NDArray[Any]:
        return np.frombuffer(self.data, np.dtype(self.dtype)).reshape(self.shape)


class WorkerState(msgspec.Struct, frozen=True):
    """What one worker must find again.

    Attributes:
      task: whose it is.
      training: in which training of its script it was, from 1.
      steps: that it had made.
      position: in its data, as JSON text; empty where nobody knows.
      carry: its random key and the state of its transform, as leaves.
    """

    task: str
    training: int
    steps: int
    position: str
    carry: tuple[_Array, ...]

    @classmethod
    def pack(cls, task: str, training: int, steps: int, position: str, carry: PyTree) -> WorkerState:
        """`carry`: see `GradientFunction`."""
        leaves = jax.tree.leaves(without_keys(carry))
        return cls(task, training, steps, position, tuple(_Array.of(np.asarray(leaf)) for leaf in leaves))

    def to_bytes(self) -> bytes:
        """For the way to ps:0."""
        return encode(self)

    @classmethod
    def from_bytes(cls, data: bytes, sender: str) -> WorkerState:
        """Raises `ProtocolError` where the bytes are no worker state."""
        return decode(data, cls, sender)

    def unpack(self, carry: PyTree, placed: Callable[[NDArray[Any]], Any] = np.asarray) -> PyTree:
        """The carry as it was.

        Args:
          carry: a new one, for its structure and shapes.
          placed: makes of each array what lies where it is to lie.

        Raises:
          ModelMismatch: the worker's transform is another one.
        """
        leaves, tree = jax.tree.flatten(without_keys(carry))
        kinds = [(leaf.dtype.name, leaf.shape) for leaf in leaves]
        if kinds != [(one.dtype, one.shape) for one in self.carry]:
            raise ModelMismatch(
                f"{self.task} resumes from a checkpoint that was made with another worker_transform or another use of "
                "random keys; go on with the same ones, or train into another directory."
            )
        return with_keys(jax.tree.unflatten(tree, [placed(one.values) for one in self.carry]), key_kinds(carry))


def write_worker_states(
    directory: Path, states: Mapping[int, WorkerState]
) -> tuple[dict[str, WorkerEntry], Part | None]:
    """Writes the workers' arrays into a file of a checkpoint; returns what its manifest says of the workers."""
    entries, pieces = {}, list[tuple[Piece, NDArray[Any]]]()
    for number, one in sorted(states.items()):
        position = json.dumps({"training": one.training, "position": one.position})
        entries[str(number)] = WorkerEntry(one.task, one.steps, position)
        for i, array in enumerate(one.carry):
            rows = array.shape[0] if array.shape else 1
            pieces.append((Piece(_tensor(number, i), array.shape, array.dtype, 0, rows), array.values))
    if not pieces:
        return entries, None
    return entries, write_part(directory, FILE, ps=0, version=0, pieces=pieces)


def read_worker_states(checkpoint: Checkpoint) -> dict[int, WorkerState]:
    """The state of every worker that a checkpoint knows.

    Raises:
      DamagedCheckpoint: what it says of a worker is not what this version writes.
    """
    states = {}
    for key, entry in checkpoint.manifest.workers.items():
        try:
            number, where = int(key), json.loads(entry.position)
            training, position = int(where["training"]), str(where["position"])
            if position:
                json.loads(position)
        except (ValueError, TypeError, KeyError) as exc:
            raise DamagedCheckpoint(
                f"{checkpoint.path}: its manifest says nothing of use about {entry.task}: {exc}."
            ) from exc
        carry: list[_Array] = []
        while (name := _tensor(number, len(carry))) in checkpoint.manifest.tensors:
            carry.append(_Array.of(checkpoint.read(name)))
        states[number] = WorkerState(entry.task, training, entry.steps, position, tuple(carry))
    return states


def redistributed(states: Mapping[int, WorkerState], tasks: Sequence[str]) -> dict[int, WorkerState]:
    """The states for these workers, which may be more or fewer than those it is from.

    With as many as before, each has its own. Otherwise all resume from where the one was that is least far, where their
    data is in one common order (as that of `Batches`): so no example is left out, and some may be seen twice.
    """
    if states.keys() == set(range(len(tasks))):
        return dict(states)
    found = {number: place for number, one in states.items() if (place := _common_place(one)) is not None}
    if not found or len(found) < len(states):
        return {number: states[number] for number in range(len(tasks)) if number in states}
    source = states[min(found, key=found.__getitem__)]
    newcomer = msgspec.structs.replace(source, carry=())
    return {
        number: msgspec.structs.replace(
            states.get(number, newcomer), task=task, training=source.training, position=source.position
        )
        for number, task in enumerate(tasks)
    }


def _common_place(state: WorkerState) -> tuple[int, int, int, int] | None:
    """(training, pass, epoch, examples) in an order that all workers have in common; `None` in any other."""
    if not state.position:
        return None
    where = json.loads(state.position)
    place = where.get("state", {}).get("value")
    if not isinstance(place, dict) or set(place) != {"epoch", "examples"}:
        return None
    return state.training, int(where["passes"]), int(place["epoch"]), int(place["examples"])


def _tensor(worker: int, leaf: int) -> str:
    return f"workers/{worker}/carry/{leaf}"
