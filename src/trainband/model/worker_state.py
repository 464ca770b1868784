"""WorkerState: the part of a worker's state that it needs to resume exactly and that the job does not share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint import DTYPES, Checkpoint, Part, Piece, WorkerEntry, write_part
from trainband.checkpoint.manifest import MOST_NUMBER
from trainband.errors import DamagedCheckpoint, ModelError, ModelMismatch, ProtocolError
from trainband.model.random_keys import key_kinds, with_keys, without_keys
from trainband.model.variables import PyTree
from trainband.wire.messages.codec import decode, encode

FILE = "workers.safetensors"

MOST_BESIDE_THE_MODEL_BYTES = 64 << 20
"""For a worker's random keys and its position in its data."""
MOST_MODELS = 8
"""How many times the model's bytes one worker's state may have in addition: a transform may keep several numbers for
each of the model's, in a wider dtype."""


class _Array(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        """Checks that it is an array that a checkpoint can hold."""
        piece = Piece("carry", self.shape, self.dtype, 0, self.shape[0] if self.shape else 1)
        if piece.nbytes != len(self.data):
            raise ValueError(f"{self.dtype}{list(self.shape)} has {piece.nbytes:,} bytes, got {len(self.data):,}")

    @classmethod
    def of(cls, array: NDArray[Any]) -> _Array:
        return cls(array.dtype.name, array.shape, array.tobytes())

    @property
    def values(self) -> NDArray[Any]:
        return np.frombuffer(self.data, DTYPES[self.dtype]).reshape(self.shape)


class WorkerState(msgspec.Struct, frozen=True):
    """The state that one worker needs to resume.

    Attributes:
      task: the worker.
      training: which training of its script it was in, from 1.
      steps: how many it had made.
      position: in its data, as JSON text; empty if unknown.
      carry: its random key and the state of its transform, as leaves.
    """

    task: str
    training: int
    steps: int
    position: str
    carry: tuple[_Array, ...]

    def __post_init__(self) -> None:
        """Checks what the types cannot express."""
        if not (0 <= self.training <= MOST_NUMBER and 0 <= self.steps <= MOST_NUMBER):
            raise ValueError(f"training {self.training} and steps {self.steps} are not valid numbers")

    @classmethod
    def pack(cls, task: str, training: int, steps: int, position: str, carry: PyTree) -> WorkerState:
        """Makes it of a `carry`, see `GradientFunction`.

        Raises:
          ModelError: a checkpoint cannot hold a leaf's dtype.
        """
        leaves = jax.tree.leaves(without_keys(carry))
        try:
            return cls(task, training, steps, position, tuple(_Array.of(np.asarray(leaf)) for leaf in leaves))
        except ValueError as exc:
            raise ModelError(f"the worker_transform of {task} has a value that no checkpoint can hold: {exc}.") from exc

    def to_bytes(self) -> bytes:
        """Encodes it for ps:0."""
        return encode(self)

    @classmethod
    def from_bytes(cls, data: bytes, sender: str) -> WorkerState:
        """Decodes it; raises `ProtocolError` unless the bytes are a worker state that a checkpoint can hold."""
        try:
            return decode(data, cls, sender)
        except (ValueError, OverflowError, RecursionError) as exc:
            raise ProtocolError(f"{sender} sent an invalid WorkerState ({exc}).") from exc

    @classmethod
    def received(cls, data: bytes, sender: str) -> WorkerState:
        """Like `from_bytes`; raises `ProtocolError` also if a checkpoint could not restore it."""
        state = cls.from_bytes(data, sender)
        try:
            is_place = not state.position or isinstance(json.loads(state.position), dict)
            state.position.encode()
        except (ValueError, RecursionError):
            is_place = False
        if not is_place:
            raise ProtocolError(f"{sender} sent a worker state whose position is not a JSON object.")
        return state

    def unpack(self, carry: PyTree, placed: Callable[[NDArray[Any]], Any] = np.asarray) -> PyTree:
        """Restores the carry.

        Args:
          carry: a new one, for its structure and shapes.
          placed: puts each array where it belongs.

        Raises:
          ModelMismatch: the worker's transform has changed.
        """
        leaves, tree = jax.tree.flatten(without_keys(carry))
        kinds = [(leaf.dtype.name, leaf.shape) for leaf in leaves]
        if kinds != [(one.dtype, one.shape) for one in self.carry]:
            raise ModelMismatch(
                f"{self.task} resumes from a checkpoint that was made with another worker_transform or another use of "
                "random keys; keep the same ones, or train into another directory."
            )
        return with_keys(jax.tree.unflatten(tree, [placed(one.values) for one in self.carry]), key_kinds(carry))


def write_worker_states(
    directory: Path, states: Mapping[int, WorkerState]
) -> tuple[dict[str, WorkerEntry], Part | None]:
    """Writes the workers' arrays into a file of a checkpoint; returns their entries for the manifest."""
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
    """Returns the state of every worker in a checkpoint.

    Raises:
      DamagedCheckpoint: a worker's entry is not one that this version writes.
    """
    states = {}
    for key, entry in checkpoint.manifest.workers.items():
        try:
            number, where = int(key), json.loads(entry.position)
            training, position = int(where["training"]), str(where["position"])
            if position and not isinstance(json.loads(position), dict):
                raise ValueError(f"position is {position!r}")
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as exc:
            raise DamagedCheckpoint(
                f"{checkpoint.path}: its manifest has no valid entry for {entry.task}: {exc}."
            ) from exc
        carry: list[_Array] = []
        while (name := _tensor(number, len(carry))) in checkpoint.manifest.tensors:
            carry.append(_Array.of(checkpoint.read(name)))
        try:
            states[number] = WorkerState(entry.task, training, entry.steps, position, tuple(carry))
        except ValueError as exc:
            raise DamagedCheckpoint(
                f"{checkpoint.path}: its manifest has no valid entry for {entry.task}: {exc}."
            ) from exc
    return states


def redistributed(states: Mapping[int, WorkerState], tasks: Sequence[str]) -> dict[int, WorkerState]:
    """Returns the states for these workers, which may be more or fewer than those saved.

    With as many as before, each has its own. Otherwise, if their data has one common order (as that of `Batches`), all
    resume from the position of the slowest: no example is left out, and some may be seen twice.
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
    """Returns (training, pass, epoch, examples) if all workers share one order; `None` otherwise."""
    if not state.position:
        return None
    try:
        where = json.loads(state.position)
        place = where["state"]["value"]
        if not isinstance(place, dict) or set(place) != {"epoch", "examples"}:
            return None
        return state.training, int(where["passes"]), int(place["epoch"]), int(place["examples"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None  # another kind, which only its own worker understands


def _tensor(worker: int, leaf: int) -> str:
    return f"workers/{worker}/carry/{leaf}"
