"""JointValues: how the processes that compute in step give one another arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.ps.contents import key_kinds, with_keys, without_keys
from trainband.ps.variables import PyTree
from trainband.strategies.agreement import MAKES, that_differ
from trainband.strategies.together import Together
from trainband.strategies.values_on_mesh import placed
from trainband.wire.patience import Say


class JointValues:
    """Exchanges of arrays, in all of which all processes take part.

    Args:
      together: the processes.
      mesh: their devices.
    """

    def __init__(self, together: Together, mesh: Mesh) -> None:
        self._together = together
        # One function for all calls, so that it is compiled once for each shape.
        self._replicate = jax.jit(lambda leaf: leaf, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def agreed(self, values: PyTree) -> PyTree:
        """The chief's, in place of each process's own."""
        self._together.check()
        with self._together.watched():
            return broadcast_one_to_all(values, is_source=self._together.is_chief)

    def united(self, values: PyTree, what: str, say: Say) -> PyTree:
        """The chief's, where they are whole: `init` may draw numbers of its own, or machines may round differently.

        Args:
          values: on the mesh.
          what: they are, in words.
          say: told by the chief whose were others.
        """
        kinds = key_kinds(values)
        leaves, tree = jax.tree.flatten(without_keys(values))
        mine = {number: own(leaf) for number, leaf in enumerate(leaves) if leaf.is_fully_replicated}
        others = that_differ(self._together, what, list(mine.values()), MAKES)
        if others:
            if self._together.is_chief:
                say(f"the {what} of {others} differ from {self._together.task}'s, with which all begin")
            for number, value in self.agreed(jax.tree.map(np.asarray, mine)).items():
                leaves[number] = placed(value, leaves[number].sharding)
        return with_keys(jax.tree.unflatten(tree, leaves), kinds)

    def come_for(self, what: str, values: PyTree) -> None:
        """Waits for all to ask for these values, where that takes an exchange. `what`: see `Together.come_together`."""
        if not all(leaf.is_fully_replicated for leaf in jax.tree.leaves(values)):
            self._together.check()
            self._together.come_together(what)

    def fetched(self, values: PyTree, keep: Callable[[Any], Any] = lambda leaf: leaf) -> PyTree:
        """All of each array, as NumPy's; an exchange for each that is in parts, one after the other: all at once may
        not fit.

        Args:
          values: on the mesh.
          keep: what to keep of each.
        """
        return jax.tree.map(lambda leaf: keep(self._whole(leaf)), values)

    def _whole(self, leaf: jax.Array) -> Any:
        if not leaf.is_fully_replicated:
            self._together.check()
            with self._together.watched():
                leaf = self._replicate(leaf)
                leaf.block_until_ready()
        return np.array(leaf.addressable_data(0))


def own(tree: PyTree) -> PyTree:
    """The copy that this process has, of values that all have."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)
