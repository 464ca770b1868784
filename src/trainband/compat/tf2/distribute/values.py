"""PerReplica: a value that each replica has its own of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.tensor import Tensor


class DistributedValues:
    """Values of several replicas."""

    __trainband_replicas__ = True


class PerReplica(DistributedValues):
    """The values of the replicas of this process, in order.

    Args:
      values: them, or a function that gives them.
      uniform: whether the values of all replicas, of other processes as well, have the same shapes.
      total: their sum over all replicas, where it is known.
    """

    def __init__(
        self,
        values: Sequence[Any] | Callable[[], Sequence[Any]],
        *,
        uniform: bool = True,
        total: Tensor | None = None,
    ) -> None:
        self._values = values
        self.uniform = uniform
        self.total = total

    @property
    def values(self) -> tuple[Any, ...]:
        """One for each replica of this process."""
        if callable(self._values):
            self._values = self._values()
        return tuple(self._values)

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return convert(self.values[0]).dtype

    @property
    def shape(self) -> Any:
        """The shape of the first."""
        return convert(self.values[0]).shape

    def __repr__(self) -> str:
        shown = ",\n  ".join(f"{number}: {value!r}" for number, value in enumerate(self.values))
        return f"PerReplica:{{\n  {shown}\n}}"


def is_leaf(value: Any) -> bool:
    """Whether a structure ends here."""
    return isinstance(value, Tensor | DistributedValues) or hasattr(value, "__trainband_tensor__")


def flattened(structure: Any) -> tuple[list[Any], Any]:
    """The leaves of a structure, and what puts it together again."""
    return jax.tree.flatten(structure, is_leaf=lambda one: one is None or is_leaf(one))


def local(structure: Any, number: int) -> Any:
    """What one replica of this process has."""
    leaves, tree = flattened(structure)
    return jax.tree.unflatten(tree, [one.values[number] if isinstance(one, PerReplica) else one for one in leaves])


def regrouped(results: Sequence[Any], *, uniform: bool = True) -> Any:
    """What the replicas of this process gave, as one structure; values that are no tensors stay as they are if alike.

    Raises:
      ValueError: they are nested differently.
    """
    found, trees = zip(*map(flattened, results), strict=True)
    if any(tree != trees[0] for tree in trees):
        raise ValueError(f"The replicas gave values that are nested differently: {', '.join(map(str, trees))}.")
    return jax.tree.unflatten(trees[0], [_together(values, uniform) for values in zip(*found, strict=True)])


def _together(values: Sequence[Any], uniform: bool) -> Any:
    first = values[0]
    if not is_leaf(first) and all(one is first or (type(one) is type(first) and one == first) for one in values):
        return first
    if hasattr(first, "read_for") and all(one is first for one in values):
        return first  # a variable, which all have
    same = uniform and len({one.aval for one in values if isinstance(one, Tensor)}) <= 1
    return PerReplica(list(values), uniform=same)
