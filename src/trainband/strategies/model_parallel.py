"""ModelParallel: variables in parts over a mesh of devices, by rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral

from trainband.cluster import Cluster
from trainband.errors import ClusterError, ModelError
from trainband.model.mesh_context import DATA
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.spmd.sharding import Rule, Rules, auto_fsdp, by_rules
from trainband.strategies.multi_worker import START_S, TIMEOUT_S, MultiWorkerMirrored


class ModelParallel(MultiWorkerMirrored):
    """Variables in parts over a mesh: tensor parallelism, FSDP, or both; in one process or over a cluster's workers.

    ::

        ModelParallel({"data": 2, "model": 4}, [("attention/.*/kernel", (None, "model")), ("mlp/out", ("model",))])
        ModelParallel({"data": -1}, rules=auto_fsdp())

    Each variable is split by the first rule whose pattern (a regular expression) is found in its path, and whole where
    none is; its part of the optimizer's state goes with it. Batches are split over the axis `data`. The result is that
    of one device, but for rounding: XLA's compiler adds the exchanges (Xu et al. 2021, "GSPMD", arXiv:2105.04663).

    Where workers share a part of the batch (the axis `model` goes over several of them), they must bring the same one.
    `params`, `evaluate` and `predict` need the parts of all workers then: call them on all at the same point, and
    with the same batches.

    Args:
      mesh: how many devices along each axis; one may be -1, for all that are left.
      rules: (pattern, spec) pairs, a spec naming a mesh axis or `None` for each axis of the variable; or `auto_fsdp()`.
      cluster: over whose workers' devices the mesh goes; `None`: over those of this process.
      remainder, timeout_s, start_s, say: see `MultiWorkerMirrored`.

    Raises:
      ClusterError: see `MultiWorkerMirrored`.
      ModelError: a pattern is no regular expression. From `fit` or `describe`: the mesh has not as many places as there
        are devices, a pattern is found in no path, or a rule does not fit its variable.
    """

    def __init__(
        self,
        mesh: Mapping[str, int],
        rules: Sequence[Rule] | Rules,
        *,
        cluster: Cluster | None = None,
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
            raise ModelError("ModelParallel: rules must be what auto_fsdp() returns, got auto_fsdp itself: call it.")
        self.rules = rules if callable(rules) else by_rules(rules)
        super().__init__(cluster, remainder=remainder, timeout_s=timeout_s, start_s=start_s, say=say)


def _is_size(size: object) -> bool:
    return isinstance(size, Integral) and not isinstance(size, bool)
