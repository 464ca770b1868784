"""Agreement: processes that compute in lockstep must run one program, from the same params, on batches of one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from trainband.errors import DataError
from trainband.model.batch import Several, ShardedBatch, digest_of, one_data_twice
from trainband.model.model import Model, Shapes
from trainband.model.variables import PyTree, path_name
from trainband.runtime.waiting import Say
from trainband.spmd.batch_sharding import OwnPart
from trainband.spmd.process_group import Group

MAKES = "makes its Trainer"
BEGINS = "comes to its first step"
COMPARES = "has made its first step"
"""Activities of a process that waits for the others' values."""

ROUNDED = 1e-4
"""Share of a variable's largest value: more than rounding on different machines can explain after one update."""


def require_one_program(
    group: Group, model: Model, shapes: Shapes, mesh: Mesh, specs: Sequence[PartitionSpec], remainder: str
) -> None:
    """Compares what the processes are about to train. Call this before any exchange of values: an exchange of arrays
    of different sizes ends the process from C++.

    Args:
      model, mesh, remainder: see `SpmdEngine`.
      shapes: of the model.
      specs: how each of the params is split over the mesh.

    Raises:
      ModelMismatch: another process trains something else; names what differs.
    """
    variables = shapes.variables
    optimizer = jax.tree_util.tree_flatten_with_path(shapes.optimizer)[0]
    mine = {
        "the mesh": str(dict(mesh.shape)),
        **{f"variable {variable.name}": _kind(variable) for variable in variables.entries},
        **{f"the sharding of {one.name}": str(spec) for one, spec in zip(variables.trained, specs, strict=True)},
        **{f"the optimizer's {path_name(path)}": _kind(leaf) for path, leaf in optimizer},
        **_transform(model, shapes),
        "compute_dtype": "none" if model.compute_dtype is None else np.dtype(model.compute_dtype).name,
        "accumulate": model.accumulate,
        "steps_per_execution": model.steps_per_execution,
        "seed": model.seed,
        "remainder": remainder,
    }
    group.require_same("programs", mine, MAKES)


def _transform(model: Model, shapes: Shapes) -> dict[str, str]:
    """Describes the `worker_transform`'s state."""
    if model.worker_transform is None:
        return {"worker_transform": "none"}
    kinds = model.shaped(model.worker_transform.init, shapes.params)
    return {"worker_transform": ", ".join(["some", *map(_kind, jax.tree.leaves(kinds))])}


def require_one_loss(group: Group, model: Model, shapes: Shapes, batch: PyTree) -> None:
    """Compares the outputs of the processes' losses and metrics, which are exchanged with the gradients.

    Args:
      model: what is trained, and its `shapes`.
      batch: of a step.

    Raises:
      ModelMismatch: another process has different metrics.
    """
    one = batch.batches[0] if isinstance(batch, Several) else batch
    one = one[0] if model.accumulate > 1 else one
    one = one.batch if isinstance(one, ShardedBatch) else one
    key = jax.random.key(0) if model.loss_takes_key else None
    loss, metrics, _ = model.shaped(
        lambda params, batch, state: model.value(params, batch, key, state), shapes.params, one, shapes.state
    )
    outputs = jax.tree_util.tree_flatten_with_path({"the loss": loss, **metrics})[0]
    group.require_same("metrics", {path_name(path): _kind(kind) for path, kind in outputs}, BEGINS)


def first_batches(group: Group, own: OwnPart, batch: PyTree, key: str, unless: str, say: Say) -> Sequence[bool]:
    """Compares the first batches of all processes, which compute one program.

    Args:
      own: the parts that this process brings.
      batch: its first one, or those of the first call.
      key: where the processes publish what they have.
      unless: where a process publishes that it ends the training instead.

    Returns:
      For each process, whether a call's batches are stacked NumPy arrays; empty if the training has ended.

    Raises:
      DataError: they differ in shape.
    """
    leaves, structure = jax.tree.flatten(batch.batches[0] if isinstance(batch, Several) else batch)
    shapes = [_kind(leaf) for leaf in map(_shaped, leaves)]
    stacks = isinstance(batch, Several) and batch.stack is not None
    digest = digest_of(leaves)
    forms = group.gather(
        key, [str(structure), ", ".join(shapes), stacks, own.first, digest], BEGINS, unless=unless, patient=True
    )
    whose: dict[int, tuple[int, str]] = {}
    for index, other in enumerate(forms):
        before, theirs = whose.setdefault(other[3], (index, other[4]))
        if other[:2] == forms[before][:2] and other[4] != theirs and group.is_chief:
            say(
                f"WARNING: {group.name(before)} and {group.name(index)} compute the same part of each batch "
                "together, but their first batches differ: give both the same data in the same order, or give the mesh "
                "a data axis over these workers"
            )
        if other[:2] != forms[0][:2]:
            raise DataError(
                f"workers that compute in lockstep need batches of one shape, but that of {group.name(0)} is "
                f"{forms[0][1]} and that of {group.name(index)} is {other[1]}. The shape of a batch that is already "
                "on the devices counts the examples of all workers."
            )
    if group.is_chief:
        _warn_of_one_data(group, [(form[3], form[4]) for form in forms], say)
    return [form[2] for form in forms]


def _warn_of_one_data(group: Group, parts: Sequence[tuple[int, str]], say: Say) -> None:
    """`parts`: for each process, its part of a batch and the digest of its first one."""
    whose: dict[str, tuple[int, int]] = {}
    for index, (part, digest) in enumerate(parts):
        before, theirs = whose.setdefault(digest, (index, part))
        if part != theirs:
            say(one_data_twice(group.name(before), group.name(index)))
            return


def different_from_chief(group: Group, what: str, values: Sequence[Any], about: str) -> str:
    """Names the processes whose arrays differ from the chief's in any bit; empty if none does. `about`: see
    `ProcessGroup.receive`.
    """
    digests = group.gather(f"digests/{what}", digest_of(values), about)
    return ", ".join(group.name(index) for index, digest in enumerate(digests) if digest != digests[0])


def warn_of_other_params(group: Group, params: Mapping[str, Any], agreed: Callable[[PyTree], PyTree], say: Say) -> None:
    """Warns if params differ after the first step by more than rounding: the chief warns about the process that is
    farthest off, each other process about itself.

    Args:
      params: by name, those that this process has whole.
      agreed: returns the chief's values on all processes.
    """
    if not different_from_chief(group, "params after the first step", list(params.values()), COMPARES):
        return
    mine = {name: np.asarray(value) for name, value in params.items()}
    chiefs = agreed(mine)
    apart = {name: _apart(mine[name], chiefs[name]) for name in mine}
    name = max(apart, key=lambda name: apart[name])
    farthest = group.gather("apart after the first step", [apart[name], name], COMPARES)
    rows = [(by, index, name) for index, (by, name) in enumerate(farthest)]
    apart_by, index, whose = max(rows) if group.is_chief else rows[group.index]
    if apart_by > ROUNDED:
        say(
            f"WARNING: after the first step, {whose} of {group.name(index)} differs from {group.name(0)}'s by "
            f"{apart_by:.2g} of its largest value, and nothing makes them equal again: the same gradient must make "
            "the same update on all workers, so give all the same optimizer with the same settings"
        )


def same_batches(group: Group, batches: Iterable[PyTree], what: str) -> Iterator[PyTree]:
    """Yields batches that all processes, which each hold a part of the variables, compute with together.

    Args:
      batches: of this process.
      what: it does with them, as in "worker:0 {what}".

    Raises:
      ClusterError: another process is doing something else.
      DataError: another one has different batches, or more or fewer.
    """
    number = 0
    for number, batch in enumerate(batches, 1):
        leaves, structure = jax.tree.flatten(batch)
        kinds = [_kind(leaf) for leaf in map(_shaped, leaves)]
        _require_same_batch(group, number, [str(structure), *kinds, digest_of(list(map(_shaped, leaves)))], what)
        yield batch
    _require_same_batch(group, number + 1, [], what)


def _require_same_batch(group: Group, number: int, form: Sequence[str], what: str) -> None:
    """`form`: of the batch; empty after the last one."""
    forms = group.barrier(what, form)
    index = next((index for index, other in enumerate(forms) if other != forms[0]), None)
    if index is None:
        return
    if not all(forms):
        some = ", ".join(group.name(index) for index, other in enumerate(forms) if not other)
        how = f"there are {number - 1} on {some} and more on others"
    else:
        how = f"batch {number} of {group.name(index)} differs from that of {group.name(0)}"
    raise DataError(
        "each worker holds a part of the variables, so all evaluate and predict together, on the same batches; but "
        f"{how}. Give all workers the same batches."
    )


def _apart(mine: Any, chiefs: Any) -> float:
    """The largest difference, as a share of the largest value."""
    mine, chiefs = mine.astype(np.float64), chiefs.astype(np.float64)
    most = max(np.abs(mine).max(initial=0.0), np.abs(chiefs).max(initial=0.0))
    return float(np.abs(mine - chiefs).max(initial=0.0) / most) if most > 0 else 0.0


def _kind(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _shaped(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
