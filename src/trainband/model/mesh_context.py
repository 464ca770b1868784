"""The mesh context in which a user's functions are traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from trainband.errors import ModelError
from trainband.model.variables import PyTree

DATA = "data"
"""The mesh axis over which batches are split."""


def require_no_mesh() -> None:
    """Refuses a mesh set by the script: JAX would use it for every program, even for those of one device.

    Raises:
      ModelError: a mesh is set.
    """
    found = jax.sharding.get_abstract_mesh()
    if not found.empty:
        raise ModelError(
            f"jax.set_mesh has set the mesh {dict(found.shape)} here; leave jax.set_mesh out around the training: the "
            "strategy sets its own mesh."
        )


def on_mesh(
    function: Callable[..., Any], mesh: Mesh | None = None, axes: Sequence[str] = (DATA,)
) -> Callable[..., Any]:
    """Wraps `function` to be traced with a mesh in context.

    There, a `PartitionSpec` alone describes a sharding, as in `jax.lax.with_sharding_constraint(x, spec)`.

    Args:
      mesh: `None` for the mesh of the arguments; if they have none, one of a single device.
      axes: the axis names of that single-device mesh.

    The returned function raises `ModelError`: see `require_no_mesh`.
    """

    @functools.wraps(function)
    def traced(*args: Any) -> Any:
        require_no_mesh()
        with jax.sharding.use_abstract_mesh(_mesh_of(args, axes) if mesh is None else mesh.abstract_mesh):
            return function(*args)

    return traced


def _mesh_of(arguments: PyTree, axes: Sequence[str]) -> AbstractMesh:
    meshes = (jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(arguments))
    single = AbstractMesh((1,) * len(axes), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    return next((mesh for mesh in meshes if not mesh.empty), single)
