"""ModelParallel: variables split over a mesh of devices by rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral

import jax
from jax.sharding import Mesh

from trainband.cluster import Cluster
from trainband.errors import ClusterError, ModelError
from trainband.model.mesh_context import DATA
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.spmd.sharding import Rule, Rules, auto_fsdp, by_rules, mesh_of
from trainband.strategies.mirrored import choose_devices
from trainband.strategies.multi_worker import START_S, TIMEOUT_S, MultiWorkerMirrored


class ModelParallel(MultiWorkerMirrored):
    """Variables split over a mesh: tensor parallelism, FSDP, or both; in one process or over a cluster's workers.

    ::

        ModelParallel({"data": 2, "model": 4}, [("attention/.*/kernel", (None, "model")), ("mlp/out", ("model",))])
        ModelParallel({"data": -1}, rules=auto_fsdp())

    Each variable is split by the first rule whose pattern (a regular expression) is found in its path, and kept whole
    if none is; its part of the optimizer's state follows it. Batches are split over the axis `data`. The result is that
    of one device, except for rounding: XLA's compiler adds the exchanges (Xu et al. 2021, "GSPMD", arXiv:2105.04663).

    If workers share a part of the batch (the axis `model` spans several of them), they must pass the same one.
    `params`, `evaluate` and `predict` then need the parts of all workers: call them on all at the same point, and
    with the same batches.

    Args:
      mesh: how many devices along each axis; one may be -1, for all remaining devices.
      rules: (pattern, spec) pairs, a spec naming a mesh axis or `None` for each axis of the variable; or `auto_fsdp()`.
      cluster: the mesh spans its workers' devices; `None`: those of this process.
      devices: of this process, without a cluster: such as `["gpu:0", "gpu:1"]` or some of `jax.devices()`, of one
        platform; default: all.
      remainder, timeout_s, start_s, say: see `MultiWorkerMirrored`.

    Raises:
      ClusterError: see `MultiWorkerMirrored`.
      ModelError: a pattern is not a regular expression. From `fit` or `describe`: the mesh does not have as many places
        as there are devices, a pattern is found in no path, or a rule does not fit its variable.
    """

    def __init__(
        self,
        mesh: Mapping[str, int],
        rules: Sequence[Rule] | Rules,
        *,
        cluster: Cluster | None = None,
        devices: Iterable[str | jax.Device] | None = None,
        remainder: str = "pad",
        timeout_s: float = TIMEOUT_S,
        start_s: float = START_S,
        say: Say = say_on_stderr,
    ) -> None:
        if not isinstance(mesh, Mapping) or not mesh or not all(map(_is_size, mesh.values())):
            raise ClusterError(
                f"ModelParallel: mesh must be a number of devices for each axis, such as {{{DATA!r}: 2, 'model': 4}}, "
                f"got {mesh!r}."
            )
        self._sizes = {axis: int(size) for axis, size in mesh.items()}
        given: object = rules
        if given is auto_fsdp:
            raise ModelError("ModelParallel: rules must be the result of auto_fsdp(), got auto_fsdp itself; call it.")
        self.rules = rules if callable(rules) else by_rules(rules)
        if devices is not None and (cluster is not None or isinstance(devices, str)):
            raise ClusterError(
                "ModelParallel: devices must be a list of devices of this process, such as ['gpu:0', 'gpu:1'], without "
                f"a cluster, whose workers use all their devices; got {devices!r}."
            )
        self._devices = None if devices is None else list(devices)
        super().__init__(cluster, remainder=remainder, timeout_s=timeout_s, start_s=start_s, say=say)

    def _make_mesh(self) -> Mesh:
        if self._devices is None:
            return super()._make_mesh()
        return mesh_of(self._sizes, choose_devices(self._devices, self._say, strict=True))


def _is_size(size: object) -> bool:
    return isinstance(size, Integral) and not isinstance(size, bool)
